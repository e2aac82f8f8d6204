"""The profiles screen: look, compare, dry-run, switch. What it shows and how it changes is in `console.profiles_*`.

Here are only the calls: what is read belongs to the view it was asked for and is dropped when the operator has left
it; the one call that changes something is owned by the app and outlives every view.
"""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import ClassVar

from textual.binding import BindingType

from console import format as fmt
from console import profiles_desk
from console.client import READ_DEADLINE_S
from console.consequence import (
    CANCEL_DEADLINE_S,
    FORECAST_DEADLINE_S,
    METHOD_CANCEL,
    METHOD_SWITCH,
    cancel_consequence,
    name,
    switch_deadline_s,
)
from console.frame import Moment
from console.lines import Line
from console.model import State
from console.profiles_desk import Desk, Told, View, Wanted
from console.profiles_page import overhang, profiles_page, running
from console.switch_terms import Terms
from console.tui.app import HINT_S, OUTCOME_S, REASON
from console.tui.keys import action_for, bindings
from console.tui.screens.ask_switch import AskSwitchScreen
from console.tui.screens.confirm import ConfirmScreen, Question
from console.tui.screens.page import Page
from engine_host.protocol.methods import Applied, CancelParams, DiffParams, ForecastParams, NoParams, SwitchParams
from engine_host.protocol.profiles import ProfileDiff, ProfileList, Tier
from engine_host.protocol.switching import SwitchForecast, SwitchResult, SwitchStatus


class ProfilesScreen(Page):
    NAME = "profiles"
    BINDINGS: ClassVar[list[BindingType]] = bindings("profiles")

    def __init__(self) -> None:
        super().__init__()
        self.desk = Desk()

    @property
    def place(self) -> str:
        return profiles_desk.place(self.desk)

    def lines(self, state: State, moment: Moment, width: int, height: int) -> list[Line]:
        return profiles_page(state, self.desk, moment, width, height)

    def show(self, state: State, moment: Moment, notice: str) -> None:
        self.desk, wanted = profiles_desk.followed(self.desk, state)
        if Wanted.LIST in wanted:
            self.run_worker(self._read_list(), group="list", exclusive=True)
        if Wanted.STATUS in wanted:
            self.run_worker(self._read_status(), group="status", exclusive=True)
        if Wanted.DIFF in wanted:
            self.run_worker(self._compare(self.desk.chosen), group="view", exclusive=True)
        super().show(state, moment, notice)

    def on_screen_resume(self) -> None:
        """Files may have changed while one was elsewhere."""
        self.desk = replace(self.desk, attached=None)

    # Moving about

    def action_move(self, steps: int) -> None:
        width, height = self.size
        self._now(
            profiles_desk.moved(
                self.desk, steps, overhang(self.console.state, self.desk, self.console.moment().now, width, height - 1)
            )
        )

    def action_back(self) -> None:
        self._now(profiles_desk.back(self.desk))

    def action_watch(self) -> None:
        self._now(profiles_desk.watching(self.desk))

    def action_reread(self) -> None:
        self.run_worker(self._read_list(), group="list", exclusive=True)

    def action_compare(self) -> None:
        self._now(profiles_desk.comparing(self.desk))
        profile = profiles_desk.chosen(self.desk)
        if profile is not None and profile.error is None:
            self.run_worker(self._compare(profile.name), group="view", exclusive=True)

    def action_dry_run(self) -> None:
        profile = profiles_desk.chosen(self.desk)
        if profile is not None and profile.error is not None:
            self.action_compare()
        elif profile is not None:
            self._now(profiles_desk.forecasting(self.desk, self.console.moment().now))
            self.run_worker(self._forecast(profile.name), group="view", exclusive=True)

    def action_dry_run_again(self) -> None:
        self.action_dry_run()

    # Asking before a change

    def action_ask_switch(self) -> None:
        told = self.desk.told
        assert told is not None
        console = self.console
        host = console.state.snapshot.host.name if console.state.snapshot is not None else ""
        profile = told.forecast.to_profile
        dialog = AskSwitchScreen(
            host, told, lambda tier: self._dry_run(profile, tier), lambda: console.moment().now, console.state
        )
        console.ask(dialog, lambda: self._switch(dialog.told, dialog.terms), name=METHOD_SWITCH)

    def action_ask_cancel(self) -> None:
        progress = profiles_desk.under_way(self.console.state)
        assert progress is not None
        question = Question(
            action_for(METHOD_CANCEL),
            f"cancel the switch to {name(progress.to_profile)}",
            lambda state: cancel_consequence(profiles_desk.under_way(state)),
            go="Cancel the switch",
            keep="Let it go on",
        )
        self.console.ask(ConfirmScreen(question, self.console.state), self._cancel, name=METHOD_CANCEL)

    # The calls

    async def _read_list(self) -> None:
        found = await self.console.attempt("profiles", "profiles.list", ProfileList, NoParams(), READ_DEADLINE_S)
        if isinstance(found, str):
            self._now(replace(self.desk, failure=found if self.desk.view is View.LIST else self.desk.failure))
        else:
            self._now(profiles_desk.listed(self.desk, found, running(self.console.state, self.desk)))

    async def _read_status(self) -> None:
        """Also for who did not start it: what became of the switch that was under way."""
        found = await self.console.attempt("switch", "switch.status", SwitchStatus, NoParams(), READ_DEADLINE_S)
        if isinstance(found, SwitchStatus):
            self._now(profiles_desk.told_last(self.desk, found.last))

    async def _compare(self, name: str) -> None:
        found = await self.console.attempt(
            "compare", "profiles.diff", ProfileDiff, DiffParams(after=name), READ_DEADLINE_S
        )
        if self.desk.view is View.DIFF and self.desk.chosen == name:
            self._now(replace(self.desk, failure=found) if isinstance(found, str) else replace(self.desk, diff=found))

    async def _forecast(self, name: str) -> None:
        found = await self._dry_run(name, None)
        if self.desk.view is not View.FORECAST or self.desk.chosen != name:
            return
        self._now(replace(self.desk, failure=found) if isinstance(found, str) else replace(self.desk, told=found))

    async def _dry_run(self, name: str, tier: Tier | None) -> Told | str:
        params = ForecastParams(profile=name, tier=tier)
        found = await self.console.attempt("dry run", "switch.forecast", SwitchForecast, params, FORECAST_DEADLINE_S)
        console = self.console
        return found if isinstance(found, str) else profiles_desk.forecasted(found, console.state, console.moment().now)

    async def _switch(self, told: Told | None, terms: Terms) -> None:
        assert told is not None
        console = self.console
        self._now(profiles_desk.asking(self.desk, told))
        params = SwitchParams(
            profile=told.forecast.to_profile,
            tier=terms.tier,
            drain_timeout_s=terms.drain_s,
            reason=REASON,
            idempotency_key=uuid.uuid4().hex,
            # Of the dry run: what it told may not hold for a host that has changed its state since.
            expected_state_version=told.state_version,
        )
        deadline_s = switch_deadline_s(console.state.snapshot, told.forecast, terms.drain_s)
        outcome = await console.attempt("switch", METHOD_SWITCH, SwitchResult, params, deadline_s)
        self._now(profiles_desk.ended(self.desk, outcome))
        if not self.is_current:
            console.notice(fmt.clean(outcome if isinstance(outcome, str) else f"switch: {outcome.text}"), OUTCOME_S)

    async def _cancel(self) -> None:
        params = CancelParams(reason=REASON, idempotency_key=uuid.uuid4().hex)
        outcome = await self.console.attempt("cancel", METHOD_CANCEL, Applied, params, CANCEL_DEADLINE_S)
        if isinstance(outcome, str):
            self.console.notice(outcome, OUTCOME_S)
        else:
            # What became of the switch is shown by itself, as for everybody who watches.
            self.console.notice(fmt.clean(f"cancel: {outcome.text}"), HINT_S)

    def _now(self, desk: Desk) -> None:
        self.desk = desk
        self.console.draw()
