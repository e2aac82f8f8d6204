"""A tokenizer as plain tables: read by the `tokenizers` library from tokenizer.json where there is one.

Only a file without one needs transformers, which takes seconds to import."""

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
    """The tokenizer cannot be read; the message says why."""


class BrokenTokenizerError(TokenizerError):
    """Because of its own files, not of what is installed here or allowed."""


def read_tokens(directory: str | Path, *, trust_remote_code: bool = False, samples: Sequence[str] = SAMPLES) -> Tokens:
    """The tokenizer in `directory`: its tokenizer.json if there is one, else whatever transformers makes of it.

    Blocks for about 0.2 s for each 50,000 tokens, for seconds with transformers. Raises `TokenizerError`, and
    `BrokenTokenizerError` where its files are at fault.
    """
    path = Path(directory) / "tokenizer.json"
    return _read_json(path, samples) if path.is_file() else _read_other(directory, trust_remote_code, samples)


def _read_json(path: Path, samples: Sequence[str]) -> Tokens:
    try:
        import tokenizers
    except ImportError:
        raise TokenizerError("the library `tokenizers`, which comes with vLLM, is not installed here") from None
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(path))
    except Exception as fault:  # the library raises bare Exception
        raise BrokenTokenizerError(f"{path} cannot be read: {_brief(fault)}") from None
    return Tokens(
        vocab=tokenizer.get_vocab(with_added_tokens=True),
        special=frozenset(token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special),
        encodings=tuple(tuple(tokenizer.encode(text, add_special_tokens=False).ids) for text in samples),
    )


def _read_other(directory: str | Path, trust_remote_code: bool, samples: Sequence[str]) -> Tokens:
    """SentencePiece models and vocabularies without a tokenizer.json."""
    try:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(str(directory), trust_remote_code=trust_remote_code)
        return Tokens(
            vocab=dict(tokenizer.get_vocab()),
            special=frozenset(str(token) for token in tokenizer.all_special_tokens),
            encodings=tuple(tuple(tokenizer.encode(text, add_special_tokens=False)) for text in samples),
        )
    except Exception as fault:  # a model's own code may raise anything
        # A library that is missing, code that may not be run and GGUF's own form say nothing about the files.
        is_elsewhere = isinstance(fault, ImportError) or "trust_remote_code" in str(fault)
        kind = TokenizerError if is_elsewhere or any(Path(directory).glob("*.gguf")) else BrokenTokenizerError
        raise kind(f"{directory} cannot be read: {_brief(fault)}") from None


def _brief(fault: Exception) -> str:
    return " ".join(str(fault).split())[:200]
