"""A page of lines that repaints only the cells that changed.

At one refresh a second over a bad link the bytes are what an operator feels. A widget a row repaints whole rows (about
150 bytes each at 80 columns); this one compares the new lines with those on screen and asks for the changed runs of
cells, so that a digit costs a digit.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.segment import Segment
from rich.style import Style
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from console.lines import STYLES, Line, Tone, cells, plain_text

_STYLES: dict[Tone, Style] = {tone: Style.parse(style) if style else Style() for tone, style in STYLES.items()}


class Board(Widget):
    """Shows whatever lines it was last given, as many as it is tall."""

    DEFAULT_CSS = "Board { height: 1fr; width: 1fr; }"
    ALLOW_SELECT = False

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.lines: list[Line] = []

    def show(self, lines: Sequence[Line]) -> None:
        """Replace the page; the lines are already as wide as the widget."""
        regions: list[Region] = []
        for y in range(max(len(lines), len(self.lines))):
            old = self.lines[y] if y < len(self.lines) else ()
            new = lines[y] if y < len(lines) else ()
            if old != new:
                start, length = changed_run(old, new, self.size.width)
                regions.append(Region(start, y, length, 1))
        self.lines = list(lines)
        if regions:
            self.refresh(*regions)

    def render_line(self, y: int) -> Strip:
        row = self.lines[y] if y < len(self.lines) else ()
        strip = Strip([Segment(text, _STYLES[tone]) for text, tone in row])
        return strip.adjust_cell_length(self.size.width)


def changed_run(old: Line, new: Line, width: int) -> tuple[int, int]:
    """(start, length) of the cells between the first and the last that differ; the whole row when a character is not
    one cell wide."""
    before, after = _cells(old, width), _cells(new, width)
    if before is None or after is None:
        return 0, width
    differ = [x for x in range(width) if before[x] != after[x]]
    return (differ[0], differ[-1] + 1 - differ[0]) if differ else (0, 0)


def _cells(row: Line, width: int) -> list[tuple[str, Tone]] | None:
    """One (character, tone) a cell, blanks to the full width; None when characters and cells do not match."""
    if cells(row) != len(plain_text(row)):
        return None
    found = [(character, tone) for text, tone in row for character in text][:width]
    return found + [(" ", Tone.PLAIN)] * (width - len(found))
