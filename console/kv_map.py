"""The block map: every cell a group of KV blocks, as dark as they are in use.

The glyph alone tells the state, for terminals and eyes without colour; the tone only repeats it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from console.lines import Line, Piece, Tone, line

MOST_CELLS = 4096
"""What one `kv.map` may be asked for."""

INDENT = 2

FREE, CACHED, PARTLY, HELD, SHARED = range(5)

_LOOKS: tuple[tuple[str, Tone, str], ...] = (
    ("·", Tone.FAINT, "free"),
    ("░", Tone.PLAIN, "cached, reusable"),
    ("▒", Tone.BAR, "partly held"),
    ("▓", Tone.BAR, "held"),
    ("█", Tone.GOOD, "shared"),
)
"""By how much a group of blocks is in use."""


def cells_that_fit(width: int, rows: int) -> int:
    return max(1, min(MOST_CELLS, (width - INDENT) * rows))


@lru_cache(maxsize=1024)
def look(blocks: tuple[int, int, int, int]) -> int:
    """What stands for a group of blocks, counted by state: free, cached, active, shared.

    Held is what half of the group or more is, shared what half of the held ones are; a single block is what it is.
    Remembered, as thousands of groups are alike.
    """
    free, cached, active, shared = (max(0, count) for count in blocks)
    held = active + shared
    if held == 0:
        return CACHED if cached > free or (cached and cached == free) else FREE
    if 2 * held < free + cached + held:
        return PARTLY
    return SHARED if 2 * shared >= held else HELD


def map_rows(cells: Sequence[tuple[int, int, int, int]], width: int, rows: int) -> list[Line]:
    """At most `rows` lines of `width` cells."""
    each = max(1, width - INDENT)
    shown = [look(cell) for cell in cells[: each * rows]]
    return [(((" " * INDENT), Tone.PLAIN), *_runs(shown[first : first + each])) for first in range(0, len(shown), each)]


def _runs(looks: Sequence[int]) -> list[Piece]:
    """Neighbours that look the same are one piece: a row of 200 cells is drawn as a few."""
    pieces: list[Piece] = []
    for found in looks:
        glyph, tone, _ = _LOOKS[found]
        if pieces and pieces[-1][1] is tone:
            pieces[-1] = (pieces[-1][0] + glyph, tone)
        else:
            pieces.append((glyph, tone))
    return pieces


def legend() -> Line:
    pieces: list[Piece] = [(" " * INDENT, Tone.PLAIN)]
    for glyph, tone, word in _LOOKS:
        pieces += [(glyph, tone), (f" {word}   ", Tone.FAINT)]
    return line(*pieces)
