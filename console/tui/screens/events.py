"""The events screen: what happened, newest first, scrollable."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import BindingType

from console.events_page import events_page, upto
from console.frame import Moment
from console.lines import Line
from console.model import State
from console.tui.keys import bindings
from console.tui.screens.page import Page


class EventsScreen(Page):
    NAME = "events"
    BINDINGS: ClassVar[list[BindingType]] = bindings("events")

    def __init__(self) -> None:
        super().__init__()
        self.top_seq: int | None = None
        """The topmost event; None follows the newest."""

    def lines(self, state: State, moment: Moment, width: int, height: int) -> list[Line]:
        return events_page(state, moment, width, height, self.top_seq)

    def action_move(self, steps: int) -> None:
        """`steps` events further back; negative towards the newest."""
        state = self.console.state
        events = [*reversed(state.events)]
        if not events:
            return
        at = len(events) - len(upto(state.events, self.top_seq))
        wanted = min(len(events) - 1, max(0, at + steps))
        self.top_seq = None if wanted == 0 else events[wanted].seq
        self.console.draw()
