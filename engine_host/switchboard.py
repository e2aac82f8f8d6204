"""Profiles and switching, as the control socket asks for them.

Sits between the socket's methods and the lifecycle: reads profile files anew for every question (they are edited while
the host runs), runs the preflight, forecasts.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from engine_host.engine import switch_words
from engine_host.engine.lifecycle import Lifecycle
from engine_host.engine.port import Handling
from engine_host.engine.start_times import StartTimes
from engine_host.engine.switch import SwitchOrder
from engine_host.engine.switch_plan import plan_switch
from engine_host.engine.timeline import PhaseTimes, forecast
from engine_host.preflight.known_answers import KnownAnswers
from engine_host.preflight.preflight import PreflightReport, run_preflight
from engine_host.profiles import Profile, ProfileDirectory, changes
from engine_host.protocol.errors import EXIT_FAILED, OperatorError
from engine_host.protocol.events import Severity
from engine_host.protocol.methods import ForecastParams, SwitchParams
from engine_host.protocol.profiles import (
    Finding,
    Preflight,
    ProfileChanges,
    ProfileDetail,
    ProfileDiff,
    ProfileList,
    Tier,
)
from engine_host.protocol.switching import NOT_NOW, Outcome, SwitchForecast, SwitchResult, SwitchStatus

SWITCH_TIMES_FILE = "switch-times.json"
"""In the state directory."""


class Switchboard:
    """`port` is the one this host serves on, which a profile may name without a conflict; `known` what its checks have
    learned. `waiting`: how many requests the scheduler has not let in, by its own word."""

    def __init__(
        self,
        lifecycle: Lifecycle,
        directory: ProfileDirectory,
        state_dir: Path,
        start_times: StartTimes,
        port: int,
        known: KnownAnswers,
        waiting: Callable[[], int],
    ) -> None:
        self._waiting = waiting
        self._lifecycle = lifecycle
        self._directory = directory
        self._start_times = start_times
        self._phase_times = PhaseTimes(state_dir / SWITCH_TIMES_FILE)
        self._port = port
        self._known = known
        self._looked_at, self._seen = time.time(), self.profiles()

    # --- profiles --------------------------------------------------------------------------------------------------

    def profiles(self) -> ProfileList:
        return self._directory.list(self._lifecycle.profile)

    def reload(self) -> ProfileChanges:
        """What has changed in the directory since the last call, or since the host started."""
        before, since = self._seen, self._looked_at
        self._looked_at, self._seen = time.time(), self.profiles()
        return changes(before, self._seen, since)

    def profile(self, name: str) -> ProfileDetail:
        """Raises `OperatorError`."""
        return self._directory.detail(name)

    def diff(self, before: str | None, after: str) -> ProfileDiff:
        """`before` None: what runs. Raises `OperatorError`."""
        return self._directory.diff(before if before is not None else self._lifecycle.profile, after)

    async def check(self, name: str) -> Preflight:
        """Raises `OperatorError` when the profile cannot even be read."""
        return (await self._preflight(self._directory.load(name))).wire

    async def _preflight(self, profile: Profile) -> PreflightReport:
        engine = self._lifecycle.engine
        pids = engine.facts.core_pids if engine is not None else ()
        return await run_preflight(profile, running_port=self._port, engine_pids=pids, known=self._known)

    # --- switching -------------------------------------------------------------------------------------------------

    async def forecast(self, params: ForecastParams) -> SwitchForecast:
        """What a switch would do; touches nothing. Raises `OperatorError`."""
        profile, running = self._directory.load(params.profile), self._lifecycle.profile
        report = await self._preflight(profile)
        engine = self._lifecycle.engine
        plan = plan_switch(running, profile, report, params.tier, has_engine=engine is not None)
        phases, expected_s, gap_s = forecast(
            plan.tier,
            self._phase_times.expected(profile.digest, plan.tier),
            self._start_times.expected_s(profile.digest),
        )
        handling = engine.handling(plan.bound) if engine is not None else Handling()
        inflight = handling.carry + handling.drain + handling.replay
        waiting = min(self._waiting(), inflight)
        if plan.tier not in (Tier.OVERLAP, Tier.RELOAD):
            handling = Handling()  # none of them notices
        refused = self._refused_now()
        return SwitchForecast(
            from_profile=running.name,
            to_profile=profile.name,
            tier=plan.tier,
            tier_reason=plan.reason,
            ok=report.ok and not refused,
            findings=[
                *refused,
                *report.wire.findings,
                *switch_words.about_names(running, profile),
                *switch_words.about_limits(*self._lifecycle.throttle.under(profile)),
            ],
            changes=list(plan.changes),
            phases=phases,
            expected_s=expected_s,
            expected_gap_s=gap_s,
            running=inflight - waiting,
            waiting=waiting,
            will_carry=handling.carry,
            will_drain=handling.drain,
            will_replay=handling.replay,
        )

    def _refused_now(self) -> list[Finding]:
        """What stands against any switch at this moment, whatever the profile."""
        refusal = self._lifecycle.switch_refusal
        if refusal is None:
            return []
        text = f"a switch is refused now: {refusal.fact}"
        return [Finding(id=NOT_NOW, severity=Severity.ERROR, text=text, remedy=refusal.remedy)]

    def status(self) -> SwitchStatus:
        under_way = self._lifecycle.switch_under_way
        return SwitchStatus(active=under_way.progress if under_way else None, last=self._lifecycle.last_switch)

    async def switch(self, params: SwitchParams, who: str) -> SwitchResult:
        """Returns when it is done, rolled back, refused or cancelled. Raises `OperatorError`."""
        drain_s = params.drain_timeout_s
        if drain_s is None:
            drain_s = self._lifecycle.profile.switch.drain_timeout_s
        order = SwitchOrder(self._directory.load(params.profile), params.tier, drain_s, who)
        return await self._lifecycle.switch(order, self._preflight, self._phase_times)

    async def cancel(self, who: str) -> str:
        """Returns when the switch has ended. Raises `OperatorError` when there is nothing to cancel, or no longer, and
        when the switch ended otherwise."""
        result = await self._lifecycle.cancel_switch(who)
        if result.outcome is not Outcome.CANCELLED:
            raise OperatorError(
                f"the switch ended before it could be cancelled: {result.text}",
                "See `vllm-console switch --status`.",
                exit_code=EXIT_FAILED,
            )
        return result.text
