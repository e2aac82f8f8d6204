"""An error's fact and remedy as sentences, for somebody who is in the console already."""

from __future__ import annotations

import re

_COMMAND = re.compile(r":\s+vllm-console .*$", re.DOTALL)
"""At the end of a remedy: what to type in a shell, where the pages show the same."""
_ENDS = (".", "?", "!")
_COMMANDS = ("vllm-console", "engine-host")


def in_sentences(fact: str, remedy: str) -> str:
    remedy = _COMMAND.sub("", remedy.strip())
    if not remedy.startswith(_COMMANDS):
        remedy = remedy[:1].upper() + remedy[1:]
    return " ".join(part if part.endswith(_ENDS) else f"{part}." for part in (fact.strip(), remedy) if part)
