"""The nearest valid names to offer when an operator's word is not one of them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

LONGEST_NAME_CHARS = 80
"""Longer words are no misspelt names; comparing them would only cost time."""


def nearest(word: str, valid: Iterable[str]) -> str | None:
    """The valid name closest to `word`, dashes and underscores alike, or `None` when nothing is close."""
    if len(word) > LONGEST_NAME_CHARS:
        return None
    by_folded = {_fold(name): name for name in valid}
    matches = difflib.get_close_matches(_fold(word), by_folded, n=1, cutoff=0.6)
    return by_folded[matches[0]] if matches else None


def suggestion(word: str, valid: Iterable[str], *, in_order: bool = False) -> str:
    """`did you mean "x"?`, or the valid names when there are few and none is near. `in_order`: as they come, where that
    says something."""
    names = list(valid) if in_order else sorted(valid)
    if match := nearest(word, names):
        return f'did you mean "{match}"?'
    if not names:
        return "no name is valid here"
    shown = ", ".join(names[:12])
    return f"valid: {shown}" + (f" and {len(names) - 12} more" if len(names) > 12 else "")


def _fold(name: str) -> str:
    return name.lower().replace("-", "_")
