"""Lines of text with a tone: what a screen is made of before any terminal library sees it.

A line is a tuple of (text, tone) pieces. The same lines are painted by the TUI and printed by `vllm-console status`,
so the panels are written and tested once, as pure functions, and compared cheaply before anything is repainted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum

from rich.cells import cell_len, set_cell_size


class Tone(StrEnum):
    """What a piece of text means. Colour only repeats what a word and a glyph already say."""

    PLAIN = ""
    LABEL = "label"
    STRONG = "strong"
    FAINT = "faint"
    GOOD = "good"
    NOTICE = "notice"
    WARN = "warn"
    BAD = "bad"
    BAR = "bar"
    KEY = "key"
    CHOSEN = "chosen"


STYLES: dict[Tone, str] = {
    Tone.PLAIN: "",
    Tone.LABEL: "bold",
    Tone.STRONG: "bold",
    Tone.FAINT: "dim",
    Tone.GOOD: "bold bright_blue",
    Tone.NOTICE: "bold",
    Tone.WARN: "bold yellow",
    Tone.BAD: "bold reverse yellow",
    Tone.BAR: "bright_blue",
    Tone.KEY: "bold bright_blue",
    Tone.CHOSEN: "reverse",
}
"""Blue against orange stays apart for the colour-blind; these names are the terminal's own 16 colours, so they follow
the operator's palette on light and dark grounds (16-colour terminals show yellow as orange or amber)."""

Piece = tuple[str, Tone]
Line = tuple[Piece, ...]
BLANK: Line = ()


def line(*parts: str | Piece) -> Line:
    """Plain strings get the plain tone; empty pieces are dropped so that equal looks compare equal."""
    pieces = (part if isinstance(part, tuple) else (part, Tone.PLAIN) for part in parts)
    return tuple((text, tone) for text, tone in pieces if text)


def plain_text(row: Line) -> str:
    return "".join(text for text, _ in row)


def cells(row: Line) -> int:
    """Width in terminal cells: a Chinese model name takes two a character."""
    return sum(cell_len(text) for text, _ in row)


def clip(text: str, width: int) -> str:
    """At most `width` cells; a cut is marked."""
    if width <= 0:
        return ""
    return text if cell_len(text) <= width else set_cell_size(text, width - 1).rstrip() + "…"


def fit(row: Line, width: int) -> Line:
    """Exactly `width` cells: cut with a mark, or padded."""
    used = cells(row)
    if used == width:
        return row
    if used < width:
        return (*row, (" " * (width - used), Tone.PLAIN))
    kept: list[Piece] = []
    left = width
    for text, tone in row:
        if cell_len(text) < left:
            kept.append((text, tone))
            left -= cell_len(text)
            continue
        # Something follows for certain, as the whole is too wide: the mark shows that it was cut.
        cut = set_cell_size(text, left - 1) if left > 1 else ""
        kept.append((cut + "…", tone))
        left -= cell_len(cut) + 1
        break
    return fit(tuple(kept), width) if left else tuple(kept)


def spread(left: Line, right: Line, width: int) -> Line:
    """`left` and `right` at the two ends; the left one gives way."""
    room = width - cells(right) - 1
    if room <= 0:
        return fit(left, width)
    return (*fit(left, room), (" ", Tone.PLAIN), *right)


def beside(left: Sequence[Line], right: Sequence[Line], left_width: int, width: int) -> list[Line]:
    """Two columns with a gap of two cells."""
    rows = max(len(left), len(right))
    padded_left = [*left, *[BLANK] * (rows - len(left))]
    padded_right = [*right, *[BLANK] * (rows - len(right))]
    return [
        (*fit(a, left_width), ("  ", Tone.PLAIN), *fit(b, width - left_width - 2))
        for a, b in zip(padded_left, padded_right, strict=True)
    ]


def faded(rows: Iterable[Line]) -> list[Line]:
    """Every piece in the faint tone: values that may no longer be true must not look live."""
    return [tuple((text, Tone.FAINT) for text, _ in row) for row in rows]
