"""One hot switch, from its preflight to its last phase.

The promise: no client request fails because of it, and one that cannot work never stops what works. So nothing is
touched before the preflight has passed; new requests wait at the gate; requests in flight are carried, drained or
replayed; and whatever fails before the release brings the former profile back.

    reload:   preflight  hold  carry  stop  start  probe  release
    overlap:  preflight  start  probe  hold  carry  release  stop
    live:     preflight  release

Until the old engine has handed over its requests a switch can be cancelled; from then on it goes forward or is rolled
back. Works through the `Deck`, inside the lifecycle's own task.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from engine_host.engine.carriage import Carriage
from engine_host.engine.commands import Cancelled, Interrupted
from engine_host.engine.deck import Deck
from engine_host.engine.port import Bound, Engine, EngineStartError
from engine_host.engine.switch_plan import SwitchPlan, plan_switch
from engine_host.engine.timeline import PhaseTimes, Timeline
from engine_host.profiles import Profile
from engine_host.protocol.events import Severity
from engine_host.protocol.profiles import Preflight, Tier
from engine_host.protocol.switching import Outcome, PhaseName, SwitchProgress, SwitchResult

T = TypeVar("T")

PROBE_S = 60.0
"""What the first token of a new engine may take; the first one compiles and captures on some platforms."""
_STOP_S = 1.0
"""What an engine that has handed over its requests gets to end by itself; it holds nothing that a kill would lose,
and vLLM's own wait for its workers would be 5 to 10 s of silence for every stream."""


class Report(Protocol):
    """A preflight report; see `engine_host.preflight`."""

    @property
    def wire(self) -> Preflight: ...
    @property
    def fits_beside(self) -> bool | None: ...


@dataclass(frozen=True)
class SwitchOrder:
    profile: Profile
    tier: Tier | None
    drain_timeout_s: float
    who: str


@dataclass
class Switch:
    """See the module docstring."""

    deck: Deck
    order: SwitchOrder
    preflight: Callable[[Profile], Awaitable[Report]]
    times: PhaseTimes
    timeline: Timeline = field(default_factory=Timeline)
    tier: Tier = Tier.RELOAD
    since: float = field(default_factory=time.time)
    cancel: asyncio.Event = field(default_factory=asyncio.Event)
    before: Profile = field(init=False)
    """What ran when it began."""
    _requests: Carriage = field(init=False)

    def __post_init__(self) -> None:
        self.before = self.deck.profile
        self._requests = Carriage(self.deck, self.timeline, self.order.drain_timeout_s, self.cancel)

    @property
    def can_cancel(self) -> bool:
        return not self._requests.is_taken

    @property
    def progress(self) -> SwitchProgress:
        expected = self.times.expected(self.order.profile.digest, self.tier)
        return SwitchProgress(
            from_profile=self.before.name,
            to_profile=self.order.profile.name,
            tier=self.tier,
            who=self.order.who,
            since=self.since,
            elapsed_s=self.timeline.elapsed_s,
            expected_s=sum(expected.values()) if expected else None,
            phases=self.timeline.phases,
            can_cancel=self.can_cancel,
        )

    async def run(self) -> SwitchResult:
        """Raises `Interrupted` when the host is to stop, and `OperatorError` for a tier that cannot be forced."""
        before = self.before
        try:
            with self.timeline.phase(PhaseName.PREFLIGHT):
                report = await self.deck.uninterrupted(_as_coroutine(self.preflight(self.order.profile)), self.cancel)
            if not report.wire.ok:
                return self._result(Outcome.REFUSED, _refusal(self.order.profile, report.wire), before)
            engine = self.deck.engine
            plan = plan_switch(before, self.order.profile, report, self.order.tier, has_engine=engine is not None)
            self.tier = plan.tier
            self.timeline.expect(self.times.expected(self.order.profile.digest, self.tier))
            return await self._carry_out(plan, before, engine)
        except Cancelled:
            text = f"switch to {self.order.profile.name} cancelled, {before.name} goes on"
            self.deck.entry.let_go()
            self.deck.keep(self.order.who)
            return self._result(Outcome.CANCELLED, text, before)
        except Interrupted:
            if self.deck.engine is None:
                self._requests.lose("the host is stopping")
            raise

    async def _carry_out(self, plan: SwitchPlan, before: Profile, engine: Engine | None) -> SwitchResult:
        if plan.tier is Tier.NONE and not plan.changes and before.name == self.order.profile.name:
            return self._result(Outcome.UNCHANGED, f"{before.name} runs already and nothing differs", before)
        if plan.tier in (Tier.NONE, Tier.LIVE) and engine is not None:
            with self.timeline.phase(PhaseName.RELEASE):
                text = f"switched {before.name} -> {self.order.profile.name}, nobody noticed"
                self.deck.install(engine, self.order.profile, self.order.who)
            return self._result(Outcome.SWITCHED, text, before)
        self.deck.switching(
            f"switching {before.name} -> {self.order.profile.name} by {plan.tier}: {plan.reason}", self.order.who
        )
        if plan.tier is Tier.OVERLAP and engine is not None:
            return await self._overlap(engine, plan.bound, before)
        return await self._reload(engine, plan.bound, before)

    # --- the tiers -------------------------------------------------------------------------------------------------

    async def _overlap(self, old: Engine, bound: Bound, before: Profile) -> SwitchResult:
        try:
            new = await self._start_and_probe(self.order.profile, self.cancel)
        except (EngineStartError, Cancelled, Interrupted) as error:
            old.reclaim_metrics()
            if not isinstance(error, EngineStartError):
                raise
            text = f"{self.order.profile.name} did not start beside {before.name}, which goes on: {error.reason}"
            self.deck.keep(self.order.who)
            return self._result(Outcome.ROLLED_BACK, text, before, list(error.lines))
        try:
            await self._hold_and_carry(old, bound)
        except (Cancelled, Interrupted):
            await new.stop(0.0)
            old.reclaim_metrics()
            raise
        await self._release(new, old, self.order.profile)
        with self.timeline.phase(PhaseName.STOP):
            await old.stop(_STOP_S, keep_app=True)
            self.deck.retire(old)
        return self._switched(before)

    async def _reload(self, old: Engine | None, bound: Bound, before: Profile) -> SwitchResult:
        if old is not None:
            await self._hold_and_carry(old, bound)
            self.deck.uninstall()
            with self.timeline.phase(PhaseName.STOP):
                await old.stop(_STOP_S, keep_app=True)
        try:
            new = await self._start_and_probe(self.order.profile, None)
        except EngineStartError as error:
            return await self._roll_back(old, before, error)
        await self._release(new, old, self.order.profile)
        if old is not None:
            self.deck.retire(old)
        return self._switched(before)

    async def _roll_back(self, old: Engine | None, before: Profile, error: EngineStartError) -> SwitchResult:
        """The former profile in a fresh engine, with the requests that the old one handed over."""
        failed = f"{self.order.profile.name} did not come up: {error.reason}"
        try:
            with self.timeline.phase(PhaseName.ROLLBACK):
                engine = await self.deck.bring_up(before, None)
                await self.deck.probe(engine, PROBE_S, None)
        except EngineStartError as second:
            self._requests.lose_all(old, "no engine could be started")
            if old is not None:
                self.deck.retire(old)
            text = f"{failed}; and {before.name} did not come back: {second.reason}"
            return self._result(Outcome.FAILED, text, before, [*error.lines, *second.lines])
        await self._release(engine, old, before)
        if old is not None:
            self.deck.retire(old)
        return self._result(Outcome.ROLLED_BACK, f"{failed}; {before.name} serves again", before, list(error.lines))

    # --- the phases ------------------------------------------------------------------------------------------------

    async def _start_and_probe(self, profile: Profile, cancel: asyncio.Event | None) -> Engine:
        with self.timeline.phase(PhaseName.START):
            engine = await self.deck.bring_up(profile, cancel)
        with self.timeline.phase(PhaseName.PROBE):
            await self.deck.probe(engine, PROBE_S, cancel)
        return engine

    async def _hold_and_carry(self, old: Engine, bound: Bound) -> None:
        with self.timeline.phase(PhaseName.HOLD):
            self._requests.hold()
        with self.timeline.phase(PhaseName.CARRY):
            await self._requests.take(old, bound)

    async def _release(self, new: Engine, old: Engine | None, profile: Profile) -> None:
        with self.timeline.phase(PhaseName.RELEASE):
            first_token = asyncio.Event()
            self.deck.on_step(lambda step: first_token.set() if step.generation_tokens else None)
            try:
                carried = await self._requests.give(new, old)
                self.deck.install(new, profile, self.order.who)
                if carried:
                    await self._requests.measure_gap(first_token)
            finally:
                self.deck.on_step(None)

    # --- the outcome -----------------------------------------------------------------------------------------------

    def _switched(self, before: Profile) -> SwitchResult:
        self.times.remember(self.order.profile.digest, self.tier, self.timeline.durations())
        carried = self._requests.carried + self._requests.replayed
        gap = f", gap {self._requests.gap_s:.2f} s" if self._requests.gap_s is not None else ""
        streams = f", {carried} streams carried{gap}" if carried else ""
        cut_off = f", {self._requests.cut_off} cut off" if self._requests.cut_off else ""
        took = f"in {self.timeline.elapsed_s:.1f} s"
        text = f"switched {before.name} -> {self.order.profile.name} {took}{cut_off}{streams}"
        return self._result(Outcome.SWITCHED, text, before)

    def _result(self, outcome: Outcome, text: str, before: Profile, lines: list[str] | None = None) -> SwitchResult:
        return SwitchResult(
            outcome=outcome,
            text=text,
            from_profile=before.name,
            to_profile=self.order.profile.name,
            tier=self.tier,
            who=self.order.who,
            at=self.since,
            took_s=self.timeline.elapsed_s,
            gap_s=self._requests.gap_s,
            held=self._requests.held,
            phases=self.timeline.phases,
            carried=self._requests.carried,
            drained=self._requests.drained,
            replayed=self._requests.replayed,
            cut_off=self._requests.cut_off,
            lines=lines or [],
        )


def _refusal(profile: Profile, preflight: Preflight) -> str:
    errors = [finding.text for finding in preflight.findings if finding.severity is Severity.ERROR]
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return f"{profile.name} cannot run here, nothing was touched: {errors[0] if errors else 'see its check'}{more}"


async def _as_coroutine(awaitable: Awaitable[T]) -> T:
    return await awaitable
