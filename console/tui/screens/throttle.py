"""The throttle screen: set a limit, pause, have the controller act. How it changes is in `console.throttle_desk`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from textual.binding import BindingType

from console import change_desk, throttle_desk
from console import format as fmt
from console.change_desk import Pending
from console.frame import Moment
from console.lines import Line
from console.model import State
from console.throttle_desk import Desk
from console.throttle_page import change_words, throttle_page
from console.tui.app import REASON
from console.tui.keys import bindings
from console.tui.poll import Poll
from console.tui.screens.change import ChangePage
from engine_host.protocol.methods import NoParams, ThrottleApplied
from engine_host.protocol.throttling import Limit, LimitValue, ThrottleSheet

DEADLINE_S = 10.0
"""The gate goes by a limit at once."""


class ThrottleScreen(ChangePage[Desk, ThrottleApplied]):
    NAME = "throttle"
    NOUN = "throttle"
    BINDINGS: ClassVar[list[BindingType]] = bindings("throttle")

    def __init__(self) -> None:
        super().__init__(Desk())
        self.sheet = Poll(self, "throttle", "throttle.get", ThrottleSheet, self._told, self._forgot)

    @property
    def place(self) -> str:
        return throttle_desk.place(self.desk, self.sheet.polled.answer)

    def lines(self, state: State, moment: Moment, width: int, height: int) -> list[Line]:
        return throttle_page(state, self.desk, self.sheet.polled, moment, width, height)

    def show(self, state: State, moment: Moment, notice: str) -> None:
        self.sheet.look(NoParams())
        super().show(state, moment, notice)

    def _told(self, sheet: ThrottleSheet) -> None:
        self.desk = throttle_desk.followed(self.desk, sheet)

    def _forgot(self) -> None:
        self.desk = throttle_desk.forgotten(self.desk)

    # Making a change

    def action_nudge(self, direction: int) -> None:
        self.put(throttle_desk.nudged(self.desk, self.sheet.polled.answer, direction))

    def action_next_value(self) -> None:
        # Not `nudge`: on a row with a question that one works too, and the key that agrees to it would step on.
        self.action_nudge(1)

    def action_take_off(self) -> None:
        self.put(throttle_desk.taken_off(self.desk, self.sheet.polled.answer))

    def action_pause(self) -> None:
        self.put(throttle_desk.pausing(self.desk, self.sheet.polled.answer))

    def action_reset(self) -> None:
        self.put(throttle_desk.reset(self.desk, self.sheet.polled.answer))

    def action_type_reason(self) -> None:
        pending = self.desk.pending
        if pending is not None:
            self.open_entry("why (esc leaves it as it is):", pending.reason)
            self.put(change_desk.typing(self.desk, True, is_reason=True))

    # What `ChangePage` wants to know of it

    def rows(self) -> Mapping[str, Limit]:
        return throttle_desk.rows(self.sheet.polled.answer)

    def shown_name(self, name: str) -> str:
        return fmt.clean(name)

    def typing_hint(self, name: str) -> str:
        return throttle_desk.typing_hint(name)

    def typed(self, text: str) -> Desk:
        return throttle_desk.typed(self.desk, self.sheet.polled.answer, text)

    def change_words(self, pending: Pending[LimitValue]) -> str:
        return change_words(pending)

    async def ask(self, pending: Pending[LimitValue], key: str) -> ThrottleApplied | str:
        method, order = throttle_desk.order(pending, REASON, key)
        return await self.console.attempt(self.NOUN, method, ThrottleApplied, order, DEADLINE_S)

    def made(self, answer: ThrottleApplied, said: str) -> Desk:
        self.sheet.put(answer.throttle)
        return throttle_desk.done(self.desk, said, answer.throttle)
