"""One hot switch, from its preflight to its last phase.

The promise: no client request fails because of it, and one that cannot work never stops what works. So nothing is
touched before the preflight has passed; new requests wait at the gate; requests in flight are carried, drained or
replayed; and whatever fails before the release brings the former profile back.

    reload:   preflight  hold  carry  stop  start  probe  release
    overlap:  preflight  start  probe  hold  carry  release  stop
    live:     preflight  release

Until the old engine has handed over its requests a switch can be cancelled; from then on it goes forward or is rolled
back. Works through the lifecycle, which stays the only writer of the host's state.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from engine_host.engine.port import Bound, Engine, EngineStartError, StepStats
from engine_host.engine.switch_plan import SwitchPlan, plan_switch
from engine_host.engine.timeline import PhaseTimes, Timeline
from engine_host.gateway.entry import Entry
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
_DRAIN_POLL_S = 0.05
_FIRST_TOKEN_S = 5.0
"""How long the first token after the release is waited for, to measure the gap."""
_CUT_OFF = "The server changed its profile, and this answer could not go on in the new engine: {reason}. Send it again."


class Report(Protocol):
    """A preflight report; see `engine_host.preflight`."""

    @property
    def wire(self) -> Preflight: ...
    @property
    def fits_beside(self) -> bool | None: ...


class Cancelled(Exception):
    """An operator cancelled the switch."""


class Interrupted(Exception):
    """The host is to stop; the switch gives way. Carries the lifecycle's own command."""

    def __init__(self, command: Any) -> None:
        super().__init__()
        self.command = command


@dataclass(frozen=True)
class SwitchOrder:
    profile: Profile
    tier: Tier | None
    drain_timeout_s: float
    who: str


class Deck(Protocol):
    """What a switch may do with the lifecycle."""

    entry: Entry
    profile: Profile

    @property
    def engine(self) -> Engine | None:
        """The engine that serves, if one does."""

    def switching(self, text: str, who: str) -> None:
        """Enter the state."""

    async def uninterrupted(self, work: Coroutine[Any, Any, T], cancel: asyncio.Event | None) -> T:
        """Await `work`; raises `Interrupted` when the host is to stop and `Cancelled` when `cancel` is set."""

    async def bring_up(self, profile: Profile, cancel: asyncio.Event | None) -> Engine:
        """Start an engine beside or after the other; raises `EngineStartError`, `Interrupted`, `Cancelled`."""

    def install(self, engine: Engine, profile: Profile, text: str, who: str) -> None:
        """It serves from now on."""

    def keep(self, text: str, who: str, severity: Severity) -> None:
        """The engine that served goes on serving."""

    def retire(self, engine: Engine) -> None:
        """Close its app when its last answer is written."""

    def uninstall(self) -> None:
        """No engine serves now."""

    on_step: Callable[[StepStats], None] | None


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
    can_cancel: bool = True
    before: Profile = field(init=False)
    """What ran when it began."""
    _old: Engine | None = None
    _carried: list[Any] = field(default_factory=list)
    _counts: dict[str, int] = field(default_factory=lambda: {"carried": 0, "drained": 0, "replayed": 0})
    _frozen_at: float | None = None
    _gap_s: float | None = None

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

    def __post_init__(self) -> None:
        self.before = self.deck.profile

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
            self.deck.keep(text, self.order.who, Severity.WARNING)
            return self._result(Outcome.CANCELLED, text, before)
        except Interrupted:
            if self._carried and self.deck.engine is None:
                self._lose("the host is stopping")
            raise

    async def _carry_out(self, plan: SwitchPlan, before: Profile, engine: Engine | None) -> SwitchResult:
        if plan.tier is Tier.NONE and not plan.changes and before.name == self.order.profile.name:
            return self._result(Outcome.UNCHANGED, f"{before.name} runs already and nothing differs", before)
        if plan.tier in (Tier.NONE, Tier.LIVE) and engine is not None:
            with self.timeline.phase(PhaseName.RELEASE):
                text = f"switched {before.name} -> {self.order.profile.name}, nobody noticed"
                self.deck.install(engine, self.order.profile, text, self.order.who)
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
            self.deck.keep(text, self.order.who, Severity.ERROR)
            return self._result(Outcome.ROLLED_BACK, text, before, list(error.lines))
        try:
            await self._hold_and_carry(old, bound)
        except (Cancelled, Interrupted):
            await new.stop(0.0)
            old.reclaim_metrics()
            raise
        await self._release(new, old, before)
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
        await self._release(new, old, before)
        if old is not None:
            self.deck.retire(old)
        return self._switched(before)

    async def _roll_back(self, old: Engine | None, before: Profile, error: EngineStartError) -> SwitchResult:
        """The former profile in a fresh engine, with the requests that the old one handed over."""
        failed = f"{self.order.profile.name} did not come up: {error.reason}"
        try:
            with self.timeline.phase(PhaseName.ROLLBACK):
                engine = await self.deck.bring_up(before, None)
                await self.deck.uninterrupted(engine.probe(PROBE_S), None)
        except EngineStartError as second:
            self._lose("no engine could be started")
            if old is not None:
                old.succeed(None, _CUT_OFF.format(reason="no engine could be started"))
                self.deck.retire(old)
            text = f"{failed}; and {before.name} did not come back: {second.reason}"
            return self._result(Outcome.FAILED, text, before, [*error.lines, *second.lines])
        text = f"{failed}; {before.name} serves again"
        await self._release(engine, old, before, back_to=before, text=text)
        if old is not None:
            self.deck.retire(old)
        return self._result(Outcome.ROLLED_BACK, text, before, list(error.lines))

    # --- the phases ------------------------------------------------------------------------------------------------

    async def _start_and_probe(self, profile: Profile, cancel: asyncio.Event | None) -> Engine:
        with self.timeline.phase(PhaseName.START):
            engine = await self.deck.bring_up(profile, cancel)
        try:
            with self.timeline.phase(PhaseName.PROBE):
                await self.deck.uninterrupted(engine.probe(PROBE_S), cancel)
        except BaseException:
            await engine.stop(0.0)
            raise
        return engine

    async def _hold_and_carry(self, old: Engine, bound: Bound) -> None:
        with self.timeline.phase(PhaseName.HOLD):
            self.deck.entry.hold(self.deck.profile.switch.hold_deadline_s)
        with self.timeline.phase(PhaseName.CARRY):
            at_first = old.handling(bound)
            await self.deck.uninterrupted(self._drain(old, bound), self.cancel)
            self.can_cancel = False
            left = old.handling(bound)
            self._frozen_at = time.monotonic()
            self._old = old
            reason = bound.reason or "it depends on state of the old engine, and its drain time is over"
            self._carried = await old.hand_over(bound, _CUT_OFF.format(reason=reason))
            replayed = sum(1 for item in self._carried if item.is_replayed)
            drained = at_first.drain + at_first.replay - left.drain - left.replay
            self._counts = {"carried": len(self._carried) - replayed, "drained": max(0, drained), "replayed": replayed}
            cut = f", {left.drain} cut off" if left.drain else ""
            self.timeline.note(", ".join(f"{n} {word}" for word, n in self._counts.items()) + cut)

    async def _drain(self, old: Engine, bound: Bound) -> None:
        """Wait for the requests that cannot be carried. The others go on meanwhile."""
        deadline = time.monotonic() + self.order.drain_timeout_s
        while time.monotonic() < deadline and not old.is_dead:
            now = old.handling(bound)
            if not now.drain and not now.replay:
                return
            self.timeline.note(f"draining {now.drain + now.replay}, carrying {now.carry}")
            await asyncio.sleep(_DRAIN_POLL_S)

    async def _release(
        self, new: Engine, old: Engine | None, before: Profile, *, back_to: Profile | None = None, text: str = ""
    ) -> None:
        with self.timeline.phase(PhaseName.RELEASE):
            cut_off = _CUT_OFF.format(reason="it is too long for the new engine")
            first_token = asyncio.Event()
            self.deck.on_step = lambda step: first_token.set() if step.generation_tokens else None
            try:
                carried = await new.adopt(self._carried, cut_off)
                self._carried = []
                if old is not None:
                    old.succeed(new, cut_off)
                said = text or f"switched {before.name} -> {self.order.profile.name}" + (
                    f", {carried} streams carried" if carried else ""
                )
                self.deck.install(new, back_to or self.order.profile, said, self.order.who)
                if carried and self._frozen_at is not None:
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(first_token.wait(), _FIRST_TOKEN_S)
                    self._gap_s = time.monotonic() - self._frozen_at
            finally:
                self.deck.on_step = None

    def _lose(self, reason: str) -> None:
        """End what was carried and found no engine."""
        if self._old is not None:
            self._old.drop(self._carried, _CUT_OFF.format(reason=reason))
        self._carried = []

    # --- the outcome -----------------------------------------------------------------------------------------------

    def _switched(self, before: Profile) -> SwitchResult:
        self.times.remember(self.order.profile.digest, self.tier, self.timeline.durations())
        carried = self._counts["carried"] + self._counts["replayed"]
        gap = f", gap {self._gap_s:.2f} s" if self._gap_s is not None else ""
        streams = f", {carried} streams carried{gap}" if carried else ""
        text = f"switched {before.name} -> {self.order.profile.name} in {self.timeline.elapsed_s:.1f} s{streams}"
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
            gap_s=self._gap_s,
            held=self.deck.entry.held_total,
            phases=self.timeline.phases,
            lines=lines or [],
            **self._counts,
        )


def _refusal(profile: Profile, preflight: Preflight) -> str:
    errors = [finding.text for finding in preflight.findings if finding.severity is Severity.ERROR]
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return f"{profile.name} cannot run here, nothing was touched: {errors[0] if errors else 'see its check'}{more}"


async def _as_coroutine(awaitable: Awaitable[T]) -> T:
    return await awaitable
