"""Asks before a switch: the terms it is to be done on can be changed there, and the consequence follows them.

Another tier is another switch: what it would do is asked of the host again, and until it has answered nobody can agree.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal
from textual.widgets import Button, Input, Static

from console import format as fmt
from console.consequence import METHOD_SWITCH, name, switch_consequence
from console.model import State
from console.profiles_desk import Told
from console.switch_terms import Terms, after, drain_seconds, tier_text, tiers
from console.tui.keys import action_for, bindings
from console.tui.screens.confirm import ConfirmScreen, Question
from engine_host.protocol.events import Severity
from engine_host.protocol.profiles import Tier
from engine_host.protocol.switching import SwitchForecast

Ask = Callable[[Tier], Awaitable[Told | str]]
"""What a switch by this tier would do, or in words why the host does not say."""


class AskSwitchScreen(ConfirmScreen):
    PLACES: ClassVar = ("confirm", "confirm_switch")
    BINDINGS: ClassVar[list[BindingType]] = bindings("confirm_switch")

    def __init__(self, host: str, told: Told, ask: Ask, now: Callable[[], float], state: State) -> None:
        """`told`: the dry run with the tier left to the host. `now`: monotonic seconds, as in `Told`."""
        self._ask, self._now = ask, now
        self._cheapest = told.forecast.tier
        self._answers: dict[Tier | None, Told | str] = {None: told}
        self._asked_at = 0.0
        self._drain_fault = ""
        self._before = name(told.forecast.from_profile)
        self.terms = Terms()
        asked = f"switch {name(host)} to {name(told.forecast.to_profile)}"
        super().__init__(Question(action_for(METHOD_SWITCH), asked, self._of_switch, "Switch"), state)

    @property
    def told(self) -> Told | None:
        """The dry run on the terms shown; None until the host has answered."""
        answer = self._answers.get(self.terms.tier)
        return answer if isinstance(answer, Told) else None

    def fields(self) -> ComposeResult:
        with Horizontal(classes="field"):
            yield Static("Tier", classes="label")
            yield Button(tier_text(None, self._cheapest), id="tier", disabled=len(tiers(self._cheapest)) == 1)
        with Horizontal(classes="field"):
            yield Static("Drain", classes="label")
            yield Input(id="drain", compact=True, select_on_focus=False)
            yield Static(self._drain_hint(), id="drain_hint", markup=False)

    def action_next_tier(self) -> None:
        tier = after(self.terms.tier, self._cheapest)
        if tier is self.terms.tier:
            return
        self.terms = replace(self.terms, tier=tier)
        self.query_one("#tier", Button).label = tier_text(tier, self._cheapest)
        if tier is not None and not isinstance(self._answers.get(tier), Told):
            self._answers.pop(tier, None)
            self._asked_at = self._now()
            self.run_worker(self._ask_about(tier), group="tier", exclusive=True)
        self.say()

    def action_to_drain(self) -> None:
        self.query_one("#drain", Input).focus()

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """Besides what the base class does on it: Textual calls the handlers of both."""
        if event.button.id == "tier":
            self.action_next_tier()

    def on_input_changed(self) -> None:
        try:
            self.terms = replace(self.terms, drain_s=drain_seconds(self.query_one("#drain", Input).value))
            self._drain_fault = ""
        except ValueError as fault:
            self._drain_fault = str(fault)
        hint = self.query_one("#drain_hint", Static)
        hint.update(self._drain_hint())
        hint.set_class(bool(self._drain_fault), "fault")
        self.say()

    def can_go(self) -> bool:
        is_told = self.told is not None and self.told.forecast.ok
        return is_told and not self._drain_fault and super().can_go()

    async def _ask_about(self, tier: Tier) -> None:
        self._answers[tier] = await self._ask(tier)
        self.say()

    def _of_switch(self, state: State) -> str:
        answer = self._answers.get(self.terms.tier)
        if answer is None:
            since = fmt.duration(self._now() - self._asked_at)
            return f"Asking the host what a switch by {self.terms.tier} would do … {since}"
        if isinstance(answer, str):
            return f"Not by {self.terms.tier}: {answer}"
        if not answer.forecast.ok:
            refused = "It is refused now" if answer.forecast.not_now else "The check refuses it"
            return f"{refused}: {_errors(answer.forecast)}"
        age_s = self._now() - answer.at
        return switch_consequence(answer.forecast, state.snapshot, self.terms.drain_s, age_s)

    def _drain_hint(self) -> str:
        if self._drain_fault:
            return f"s: {self._drain_fault}"
        return f"s; empty: {self._before}'s drain time"


def _errors(forecast: SwitchForecast) -> str:
    found = [fmt.clean(finding.text) for finding in forecast.findings if finding.severity is Severity.ERROR]
    return "; ".join(found) or "the host does not say why"
