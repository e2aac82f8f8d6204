"""The throttle screen: set a limit, pause, have the controller act. How it changes is in `console.throttle_desk`."""

from __future__ import annotations

import uuid
from typing import ClassVar

from textual.binding import BindingType
from textual.widgets import Input

from console import format as fmt
from console import throttle_desk
from console.frame import Moment
from console.lines import Line
from console.model import State
from console.throttle_desk import Desk, Pending
from console.throttle_page import change_words, throttle_page
from console.tui.app import OUTCOME_S, REASON
from console.tui.keys import bindings
from console.tui.poll import Poll
from console.tui.screens.entry import EntryPage
from engine_host.protocol.methods import NoParams, ThrottleApplied
from engine_host.protocol.throttling import ThrottleSheet

DEADLINE_S = 10.0
"""The gate goes by a limit at once."""


class ThrottleScreen(EntryPage):
    NAME = "throttle"
    BINDINGS: ClassVar[list[BindingType]] = bindings("throttle")

    def __init__(self) -> None:
        super().__init__()
        self.desk = Desk()
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

    def action_move(self, steps: int) -> None:
        self._now(throttle_desk.moved(self.desk, self.sheet.polled.answer, steps))

    def action_nudge(self, direction: int) -> None:
        self._now(throttle_desk.nudged(self.desk, self.sheet.polled.answer, direction))

    def action_next_value(self) -> None:
        # Not `nudge`: on a row with a question that one works too, and the key that agrees to it would step on.
        self.action_nudge(1)

    def action_take_off(self) -> None:
        self._now(throttle_desk.taken_off(self.desk, self.sheet.polled.answer))

    def action_pause(self) -> None:
        self._now(throttle_desk.pausing(self.desk, self.sheet.polled.answer))

    def action_reset(self) -> None:
        self._now(throttle_desk.reset(self.desk, self.sheet.polled.answer))

    def action_lasting(self) -> None:
        self._now(throttle_desk.lasting_next(self.desk))

    def action_drop(self) -> None:
        self._now(throttle_desk.dropped(self.desk))

    # Typing a value

    def action_type_value(self) -> None:
        name = throttle_desk.chosen(self.desk, self.sheet.polled.answer)
        if throttle_desk.is_typed(name):
            self.open_entry(self._entry_label(), "")
            self._now(throttle_desk.typing(self.desk, True))

    def action_type_reason(self) -> None:
        pending = self.desk.pending
        if pending is not None:
            self.open_entry("why (esc leaves it as it is):", pending.reason)
            self._now(throttle_desk.typing(self.desk, True, is_reason=True))

    def action_stop_typing(self) -> None:
        self.close_entry()
        self._now(throttle_desk.typing(self.desk, False))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        desk = throttle_desk.typed(self.desk, self.sheet.polled.answer, event.value)
        if desk.typing_fault:
            self.say_at_entry(f"{self._entry_name()} ▲ {desk.typing_fault}:")
        else:
            self.close_entry()
        self._now(desk)

    def _entry_label(self) -> str:
        name = self._entry_name()
        return f"{name} ({throttle_desk.typing_hint(name)}; esc drops it):"

    def _entry_name(self) -> str:
        return fmt.clean(throttle_desk.chosen(self.desk, self.sheet.polled.answer) or "")

    # The call

    def action_send(self) -> None:
        pending = self.desk.pending
        assert pending is not None
        self._now(throttle_desk.sending(self.desk))
        # Owned by the app: its outcome outlives this page.
        self.console.run_worker(self._set(pending), name="throttle", exit_on_error=False)

    async def _set(self, pending: Pending) -> None:
        console = self.console
        method, order = throttle_desk.order(pending, REASON, uuid.uuid4().hex)
        outcome = await console.attempt("throttle", method, ThrottleApplied, order, DEADLINE_S)
        is_done = not isinstance(outcome, str)
        said = outcome if isinstance(outcome, str) else fmt.clean(outcome.text)
        sheet = None if isinstance(outcome, str) else outcome.throttle
        self.desk = throttle_desk.answered(self.desk, said, sheet)
        if sheet is not None:
            self.sheet.put(sheet)
        console.draw()
        if not self.is_current:
            console.notice(said if not is_done else f"throttle: {said or change_words(pending)}", OUTCOME_S)

    def _now(self, desk: Desk) -> None:
        self.desk = desk
        self.console.draw()
