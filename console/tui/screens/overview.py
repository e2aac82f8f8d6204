"""The overview: everything about the host on one page."""

from __future__ import annotations

from console.frame import Moment
from console.lines import Line
from console.model import State
from console.overview import overview
from console.tui.screens.page import Page


class OverviewScreen(Page):
    NAME = "overview"

    def lines(self, state: State, moment: Moment, width: int, height: int) -> list[Line]:
        return overview(state, moment, width, height)
