"""An error of vLLM in a line: its type where the text alone says little."""

from __future__ import annotations


def one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return text if len(text) > 20 else f"{type(error).__name__}: {text}"
