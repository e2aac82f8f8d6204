"""What every full screen is: a board above a one-line footer, drawn from (state, moment, size)."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, ClassVar, cast

from textual.app import ComposeResult
from textual.screen import Screen

from console.frame import Moment
from console.lines import Line, Tone, fit, line
from console.model import State
from console.tui.offers import footer, works
from console.tui.widgets.board import Board

if TYPE_CHECKING:
    from console.tui.app import ConsoleApp

NOTICE_ROWS = 5
"""A longer notice is cut: the figures above it are why one is here."""


class Page(Screen[None]):
    NAME: ClassVar[str]
    """As the action table names it."""

    @property
    def place(self) -> str:
        """Where on the screen one is, as the action table names it; a screen with several views has several."""
        return self.NAME

    def compose(self) -> ComposeResult:
        yield Board(id="board")
        yield Board(id="footer")

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Of the screen's own actions those that work at this place; Textual's are left to Textual."""
        if not hasattr(type(self), f"action_{action}") or hasattr(Page, f"action_{action}"):
            return True
        return works(action, parameters, self.place, self.console.state)

    @property
    def console(self) -> ConsoleApp:
        """The app that this page belongs to."""
        return cast("ConsoleApp", self.app)

    def lines(self, state: State, moment: Moment, width: int, height: int) -> list[Line]:
        raise NotImplementedError

    def show(self, state: State, moment: Moment, notice: str) -> None:
        if not self.is_mounted:
            return
        width, height = self.size
        rows = [*self.lines(state, moment, width, height - 1), footer(self.place, state, width)]
        if notice:
            # Over the last rows: an outcome must be readable to its end, and is gone again in a while.
            said = [line((part, Tone.NOTICE)) for part in textwrap.wrap(notice, max(20, width))[:NOTICE_ROWS]]
            rows[-len(said) :] = said
        *page, foot = [fit(row, width) for row in rows[-height:]] or [()]
        self.query_one("#board", Board).show(page)
        self.query_one("#footer", Board).show([foot])
