"""A tokenizer as plain tables: read by the `tokenizers` library from tokenizer.json, without transformers or torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

SAMPLES = (
    "The quick brown fox jumps over the lazy dog.",
    "  two  spaces,\ttab\n\n\nand newlines \r\n",
    "def f(x: int) -> str:\n    return f'{x!r}'  # 0x1F, 3.14e-10\n",
    '{"key": [1, 2.5, null, true], "path": "C:\\\\temp\\\\x"}',
    "Zażółć gęślą jaźń – Äpfel, ñandú, čeština",
    "日本語のテキスト、中文文本、한국어 텍스트",
    "Привет, мир! שלום עולם مرحبا بالعالم",
    "🙂👩‍👩‍👧‍👦🇪🇺 emoji\u200d\ufe0f \u00a0nbsp",
    "1234567890 1,000,000 ½ ² ∑ ≤ →",
    "<|im_start|>user\nhi<|im_end|>\n<s>[INST]</s>",
)
"""What splits differently between tokenizers that look alike: whitespace, code, accents, scripts, emoji, digits, and
special tokens written as text."""


@dataclass(frozen=True)
class Tokens:
    vocab: Mapping[str, int]
    """Token -> id, added tokens included."""
    special: frozenset[str]
    encodings: tuple[tuple[int, ...], ...] = ()
    """Of `SAMPLES`, without the tokens that a template adds around them."""


class TokenizerError(Exception):
    """The file is no tokenizer; the message says why."""


def read_tokens(path: Path, samples: Sequence[str] = SAMPLES) -> Tokens:
    """Blocks for about 0.1 s for each 50,000 tokens. Raises `TokenizerError`, or `ImportError` without the library."""
    import tokenizers

    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(path))
    except Exception as fault:  # the library raises bare Exception
        raise TokenizerError(f"{path} cannot be read: {' '.join(str(fault).split())[:200]}") from None
    return Tokens(
        vocab=tokenizer.get_vocab(with_added_tokens=True),
        special=frozenset(token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special),
        encodings=tuple(tuple(tokenizer.encode(text, add_special_tokens=False).ids) for text in samples),
    )
