"""The dials screen: move one, agree to it, see what comes of it. How it changes is in `console.dials_desk`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from textual.binding import BindingType

from console import dials_desk
from console import format as fmt
from console.change_desk import Pending, dropped
from console.consequence import DIAL_DEADLINE_S, METHOD_DIALS
from console.dial_effect import Effect, comparison
from console.dials_desk import Desk
from console.dials_page import change_words, dial_name, dials_page
from console.frame import Moment
from console.lines import Line
from console.model import State
from console.tui.app import REASON
from console.tui.keys import bindings
from console.tui.screens.change import ChangePage
from engine_host.protocol.methods import DialsApplied
from engine_host.protocol.snapshot import Dial


class DialsScreen(ChangePage[Desk, DialsApplied]):
    NAME = "dials"
    NOUN = "dial"
    BINDINGS: ClassVar[list[BindingType]] = bindings("dials")

    def __init__(self) -> None:
        super().__init__(Desk())

    @property
    def place(self) -> str:
        return dials_desk.place(self.desk, self.console.state)

    def lines(self, state: State, moment: Moment, width: int, height: int) -> list[Line]:
        return dials_page(state, self.desk, moment, width, height)

    def show(self, state: State, moment: Moment, notice: str) -> None:
        self.desk = dials_desk.followed(self.desk, state)
        super().show(state, moment, notice)

    # Making a change

    def action_nudge(self, direction: int) -> None:
        self.put(dials_desk.nudged(self.desk, self.console.state, direction))

    def action_reset(self) -> None:
        self.put(dials_desk.reset(self.desk, self.console.state))

    def action_revert(self) -> None:
        found = comparison(self.console.state)
        why = "reverted"
        if found is not None and found.effect is Effect.SLOWER:
            why += f": out {fmt.rate(found.before)} before, {fmt.rate(found.after)} after"
        self.put(dials_desk.reverting(self.desk, self.console.state, why))

    def propose(self, dial: str, value: int, reason: str, for_s: float | None) -> None:
        self.desk = dials_desk.proposed(dropped(self.desk), self.console.state, dial, value, reason, for_s)

    # What `ChangePage` wants to know of it

    def rows(self) -> Mapping[str, Dial]:
        return dials_desk.dials(self.console.state)

    def shown_name(self, name: str) -> str:
        return dial_name(name)

    def typing_hint(self, name: str) -> str:
        return dials_desk.typing_hint(self.rows()[name])

    def typed(self, text: str) -> Desk:
        return dials_desk.typed(self.desk, self.console.state, text)

    def change_words(self, pending: Pending[int]) -> str:
        return change_words(pending)

    async def ask(self, pending: Pending[int], key: str) -> DialsApplied | str:
        order = dials_desk.order(pending, REASON, key)
        return await self.console.attempt(self.NOUN, METHOD_DIALS, DialsApplied, order, DIAL_DEADLINE_S)

    def made(self, answer: DialsApplied, said: str) -> Desk:
        return dials_desk.done(self.desk, said)
