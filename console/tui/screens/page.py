"""What every full screen is: a board above a one-line footer, drawn from (state, moment, size)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.app import ComposeResult
from textual.screen import Screen

from console.lines import Line, fit
from console.model import State
from console.overview import Moment
from console.tui.keys import footer
from console.tui.widgets.board import Board

if TYPE_CHECKING:
    pass


class Page(Screen[None]):
    NAME: ClassVar[str]
    """As the action table names it."""

    def compose(self) -> ComposeResult:
        yield Board(id="board")
        yield Board(id="footer")

    def lines(self, state: State, moment: Moment, width: int, height: int) -> list[Line]:
        raise NotImplementedError

    def show(self, state: State, moment: Moment, notice: str) -> None:
        if not self.is_mounted:
            return
        width, height = self.size
        self.query_one("#board", Board).show(self.lines(state, moment, width, height - 1))
        self.query_one("#footer", Board).show([fit(footer(self.NAME, state, notice, width), width)])
