"""The dials screen: move one, agree to it, see what comes of it. How it changes is in `console.dials_desk`."""

from __future__ import annotations

import uuid
from typing import ClassVar

from textual.binding import BindingType
from textual.widgets import Input

from console import dials_desk
from console import format as fmt
from console.consequence import DIAL_DEADLINE_S, METHOD_DIALS
from console.dial_effect import Effect, comparison
from console.dials_desk import Desk, Pending
from console.dials_page import change_words, dial_name, dials_page
from console.frame import Moment
from console.lines import Line
from console.model import State
from console.tui.app import OUTCOME_S, REASON
from console.tui.keys import bindings
from console.tui.screens.entry import EntryPage
from engine_host.protocol.methods import DialsApplied


class DialsScreen(EntryPage):
    NAME = "dials"
    BINDINGS: ClassVar[list[BindingType]] = bindings("dials")

    def __init__(self) -> None:
        super().__init__()
        self.desk = Desk()

    @property
    def place(self) -> str:
        return dials_desk.place(self.desk, self.console.state)

    def lines(self, state: State, moment: Moment, width: int, height: int) -> list[Line]:
        return dials_page(state, self.desk, moment, width, height)

    def show(self, state: State, moment: Moment, notice: str) -> None:
        self.desk = dials_desk.followed(self.desk, state)
        super().show(state, moment, notice)

    # Making a change

    def action_move(self, steps: int) -> None:
        self._now(dials_desk.moved(self.desk, self.console.state, steps))

    def action_nudge(self, direction: int) -> None:
        self._now(dials_desk.nudged(self.desk, self.console.state, direction))

    def action_lasting(self) -> None:
        self._now(dials_desk.lasting_next(self.desk))

    def action_reset(self) -> None:
        self._now(dials_desk.reset(self.desk, self.console.state))

    def action_drop(self) -> None:
        self._now(dials_desk.dropped(self.desk))

    def action_revert(self) -> None:
        found = comparison(self.console.state)
        why = "reverted"
        if found is not None and found.effect is Effect.SLOWER:
            why += f": out {fmt.rate(found.before)} before, {fmt.rate(found.after)} after"
        self._now(dials_desk.reverting(self.desk, self.console.state, why))

    def propose(self, dial: str, value: int, reason: str, for_s: float | None) -> None:
        self.desk = dials_desk.proposed(dials_desk.dropped(self.desk), self.console.state, dial, value, reason, for_s)

    # Typing a value

    def action_type_value(self) -> None:
        name = dials_desk.chosen(self.desk, self.console.state)
        if name is not None:
            self.open_entry(self._entry_label(), "")
            self._now(dials_desk.typing(self.desk, True))

    def action_stop_typing(self) -> None:
        self.close_entry()
        self._now(dials_desk.typing(self.desk, False))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        desk = dials_desk.typed(self.desk, self.console.state, event.value)
        if desk.typing_fault:
            self.say_at_entry(f"{self._entry_name()} ▲ {desk.typing_fault}:")
        else:
            self.close_entry()
        self._now(desk)

    def _entry_label(self) -> str:
        dial = dials_desk.dials(self.console.state).get(dials_desk.chosen(self.desk, self.console.state) or "")
        span = f"{dial.low} to {dial.high}; " if dial is not None else ""
        return f"{self._entry_name()} ({span}esc drops it):"

    def _entry_name(self) -> str:
        return dial_name(dials_desk.chosen(self.desk, self.console.state) or "")

    # The call

    def action_send(self) -> None:
        pending = self.desk.pending
        assert pending is not None
        self._now(dials_desk.sending(self.desk))
        # Owned by the app: its outcome outlives this page.
        self.console.run_worker(self._set(pending), name=METHOD_DIALS, exit_on_error=False)

    async def _set(self, pending: Pending) -> None:
        console = self.console
        order = dials_desk.order(pending, REASON, uuid.uuid4().hex)
        outcome = await console.attempt("dial", METHOD_DIALS, DialsApplied, order, DIAL_DEADLINE_S)
        is_done = not isinstance(outcome, str)
        said = outcome if isinstance(outcome, str) else fmt.clean(outcome.text)
        self.desk = dials_desk.answered(self.desk, said, is_done=is_done)
        console.draw()
        if not self.is_current:
            console.notice(said if not is_done else f"dial: {said or change_words(pending)}", OUTCOME_S)

    def _now(self, desk: Desk) -> None:
        self.desk = desk
        self.console.draw()
