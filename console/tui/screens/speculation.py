"""The speculation screen. What it recommends is applied on the dials screen, after the question that is asked there."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import BindingType

from console.dials_desk import SPECULATIVE_TOKENS
from console.frame import Moment
from console.lines import Line
from console.model import State
from console.speculation_page import offer, place, speculation_page
from console.tui.keys import bindings
from console.tui.screens.page import Page


class SpeculationScreen(Page):
    NAME = "speculation"
    BINDINGS: ClassVar[list[BindingType]] = bindings("speculation")

    @property
    def place(self) -> str:
        return place(self.console.state)

    def lines(self, state: State, moment: Moment, width: int, height: int) -> list[Line]:
        return speculation_page(state, moment, width, height)

    def action_apply(self) -> None:
        found = offer(self.console.state)
        assert found is not None
        _, k, for_s, why = found
        self.console.propose_dial(SPECULATIVE_TOKENS, k, why, for_s)
