"""One hot switch, from its preflight to its last phase.

The promise: no client request fails because of it, and one that cannot work never stops what works. So nothing is
touched before the preflight has passed; new requests wait at the gate; requests in flight are carried, drained or
replayed; and whatever fails before the release brings the former profile back.

    reload:   preflight  prepare  hold  carry  stop  start  probe  release
    overlap:  preflight  start  probe  warm  hold  carry  release  stop
    live:     preflight  release

Until the old engine has handed over its requests a switch can be cancelled; from then on it goes forward or is rolled
back. Works through the `Deck`, inside the lifecycle's own task.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from engine_host.engine import switch_words
from engine_host.engine.carriage import Carriage
from engine_host.engine.commands import Cancelled, Interrupted
from engine_host.engine.deck import Deck
from engine_host.engine.old_engine import OldEngine
from engine_host.engine.port import Bound, Engine, EngineStartError
from engine_host.engine.switch_plan import Checked, SwitchPlan, plan_switch
from engine_host.engine.timeline import PhaseTimes, Timeline
from engine_host.profiles import Profile
from engine_host.protocol.errors import OperatorError
from engine_host.protocol.profiles import Tier
from engine_host.protocol.switching import Outcome, PhaseName, SwitchProgress, SwitchResult

logger = logging.getLogger(__name__)

PROBE_S = 60.0
"""What the first token of a new engine may take; the first one compiles and captures on some platforms."""
AHEAD_S = 30.0
"""What an engine that has started beside another one gets to compute ahead what it will take over; the other serves on
meanwhile."""
_STOP_S = 0.1
"""What an engine that has handed over its requests gets to end by itself; it holds nothing that a kill would lose,
and vLLM's own wait for its workers would be 5 to 10 s of silence for every stream."""


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
    preflight: Callable[[Profile], Coroutine[Any, Any, Checked]]
    times: PhaseTimes
    done: asyncio.Future[SwitchResult]
    """Its end, for whoever waits for it."""
    timeline: Timeline = field(default_factory=Timeline)
    tier: Tier = Tier.RELOAD
    since: float = field(default_factory=time.time)
    cancel: asyncio.Event = field(default_factory=asyncio.Event)
    cancelled_by: str = ""
    before: Profile = field(init=False)
    """What ran when it began."""
    _requests: Carriage = field(init=False)
    _old: OldEngine = field(init=False)
    _new: Engine | None = field(default=None, init=False)
    """The one started last."""
    _limits: list[str] = field(default_factory=list, init=False)
    """What became of those at the gate."""
    _ending: asyncio.Task[None] | None = field(default=None, init=False)
    """The end of the old one."""

    def __post_init__(self) -> None:
        self.before = self.deck.profile
        self._requests = Carriage(self.deck, self.timeline, self.order.drain_timeout_s, self.cancel)
        self._old = OldEngine(self.deck, self._requests, self.order.profile)

    @property
    def can_cancel(self) -> bool:
        return not self._requests.is_taken

    @property
    def progress(self) -> SwitchProgress:
        return SwitchProgress(
            from_profile=self.before.name,
            to_profile=self.order.profile.name,
            tier=self.tier,
            who=self.order.who,
            since=self.since,
            elapsed_s=self.timeline.elapsed_s,
            expected_s=self.timeline.expected_s,
            phases=self.timeline.phases,
            can_cancel=self.can_cancel,
            died=self._old.death,
        )

    async def run(self) -> SwitchResult:
        """Raises `Interrupted` when the host is to stop, and `OperatorError` for a tier that cannot be forced.

        Nothing else: a mistake of ours must not end a host that serves.
        """
        engine = self.deck.engine
        with self._old.watched(engine):
            return await self._run(engine)

    async def _run(self, engine: Engine | None) -> SwitchResult:
        try:
            with self.timeline.phase(PhaseName.PREFLIGHT):
                report = await self.deck.uninterrupted(self.preflight(self.order.profile), self.cancel)
            if not report.wire.ok:
                return self._result(Outcome.REFUSED, switch_words.refused(self.order.profile, report.wire))
            plan = plan_switch(self.before, self.order.profile, report, self.order.tier, has_engine=engine is not None)
            self.tier = plan.tier
            self.timeline.expect(self.times.expected(self.order.profile.digest, self.tier))
            return await self._carry_out(plan, engine)
        except Cancelled:
            text = f"{self.cancelled_by} cancelled the switch to {self.order.profile.name}"
            return self._keep(Outcome.CANCELLED, text)
        except Interrupted:
            if self.deck.engine is None:
                self._requests.stop()
                self.deck.stopping()
            raise
        except OperatorError:
            raise
        except Exception as error:
            logger.exception("the switch to %s failed inside the host", self.order.profile.name)
            return await self._break_off(f"{type(error).__name__}: {error}", engine)

    async def _carry_out(self, plan: SwitchPlan, engine: Engine | None) -> SwitchResult:
        if plan.tier is Tier.NONE and not plan.changes and self.before.name == self.order.profile.name:
            return self._result(Outcome.UNCHANGED, f"{self.before.name} runs already and nothing differs")
        if plan.tier in (Tier.NONE, Tier.LIVE) and engine is not None:
            with self.timeline.phase(PhaseName.RELEASE):
                try:
                    await self.deck.uninterrupted(self.deck.prepare_dials(engine, self.order.profile), self.cancel)
                except EngineStartError as error:
                    return self._result(Outcome.ROLLED_BACK, f"{error.reason}; {self.before.name} goes on")
                self._limits += self.deck.install(engine, self.order.profile, self.order.who)
            return self._switched(plan)
        self.deck.switching(
            f"switching {self.before.name} -> {self.order.profile.name} by {plan.tier}: {plan.reason}", self.order.who
        )
        if plan.tier is Tier.OVERLAP and engine is not None:
            return await self._overlap(engine, plan)
        return await self._reload(engine, plan)

    # --- the tiers -------------------------------------------------------------------------------------------------

    async def _overlap(self, old: Engine, plan: SwitchPlan) -> SwitchResult:
        try:
            new = await self._start_and_probe(self.order.profile, self.cancel)
        except (EngineStartError, Cancelled, Interrupted) as error:
            return await self._failed_beside(old, plan, error)
        try:
            if not old.is_dead:
                await self._compute_ahead(new, old, plan.bound)
            await self._hold_and_carry(old, plan.bound)
        except (Cancelled, Interrupted):
            await new.stop(0.0)
            old.reclaim_metrics()
            raise
        # At once: for a second its idle workers go on looking for work, on the cores that the new ones compute on.
        self._end(old)
        try:
            await self._release(new, self.order.profile)
        except EngineStartError as error:
            await self._stop(old)
            return await self._roll_back(old, error)
        await self._stop(old)
        self.deck.retire(old)
        return self._switched(plan)

    async def _reload(self, old: Engine | None, plan: SwitchPlan) -> SwitchResult:
        new: Engine | None = None
        if old is not None:
            try:
                with self.timeline.phase(PhaseName.PREPARE):
                    new = self._new = await self.deck.prepare(self.order.profile, self.cancel)
            except (EngineStartError, Cancelled, Interrupted) as error:
                return await self._failed_beside(old, plan, error)
            try:
                await self._hold_and_carry(old, plan.bound)
            except (Cancelled, Interrupted):
                await new.stop(0.0)
                raise
            await self._stop(old)
        try:
            # With no engine to begin with there is nothing to go back to, and nothing that a cancel would lose.
            new = await self._start_and_probe(self.order.profile, self.cancel if old is None else None, new)
            await self._release(new, self.order.profile)
        except EngineStartError as error:
            return await self._roll_back(old, error)
        if old is not None:
            self.deck.retire(old)
        return self._switched(plan)

    async def _failed_beside(self, old: Engine, plan: SwitchPlan, error: BaseException) -> SwitchResult:
        """The new engine failed or was given up while the old one served. Raises `error` unless it is its own."""
        old.reclaim_metrics()
        if not isinstance(error, EngineStartError):
            raise error
        if old.is_dead:
            await self._hold_and_carry(old, plan.bound)
            await self._stop(old)
            return await self._roll_back(old, error)
        text = f"{self.order.profile.name} did not start beside {self.before.name}, which goes on: {error.reason}"
        self.deck.keep(self.order.who)
        return self._result(Outcome.ROLLED_BACK, text, error.lines)

    async def _roll_back(self, old: Engine | None, error: EngineStartError) -> SwitchResult:
        """The former profile in a fresh engine, with the requests that the old one handed over."""
        failed = f"{self.order.profile.name} did not come up: {error.reason}"
        try:
            with self.timeline.phase(PhaseName.ROLLBACK):
                engine = self._new = await self.deck.bring_up(self.before, None)
                await self.deck.probe(engine, PROBE_S, None)
            await self._release(engine, self.before)
        except EngineStartError as second:
            self._requests.lose("no engine could be started")
            text = f"{failed}; and {self.before.name} did not come back: {second.reason}"
            result = self._result(Outcome.FAILED, text, [*error.lines, *second.lines])
        else:
            died = ", which had died meanwhile," if self._old.death is not None else ""
            text = f"{failed}; {self.before.name}{died} serves again"
            result = self._result(Outcome.ROLLED_BACK, text, error.lines)
        if old is not None:
            self.deck.retire(old)
        return result

    async def _break_off(self, mistake: str, old: Engine | None) -> SwitchResult:
        """Whatever can serve goes on: the new engine if it is installed, the old one if it has not handed over."""
        said = f"the switch to {self.order.profile.name} failed inside the host ({mistake})"
        serving = self.deck.engine
        if self._new is not None and self._new is not serving:
            await self._new.stop(0.0)
        if not self._requests.is_taken:
            if old is not None:
                old.reclaim_metrics()
            return self._keep(Outcome.ROLLED_BACK, said)
        if old is not None:
            await self._end(old)
            self.deck.retire(old)
        if serving is not None and serving is self._new:
            is_switched = self.deck.profile is self.order.profile
            text = f"{said}; {self.deck.profile.name} serves all the same"
            return self._result(Outcome.SWITCHED if is_switched else Outcome.ROLLED_BACK, text)
        self.deck.uninstall()
        try:
            self._requests.lose("the switch failed inside the host")
        except Exception:
            logger.exception("requests in flight were lost without an answer")
        return self._result(Outcome.FAILED, said)

    def _keep(self, outcome: Outcome, why: str) -> SwitchResult:
        """Nothing has been handed over: what was before the switch goes on."""
        self.deck.entry.let_go()
        self.deck.keep(self.order.who)
        if self.deck.engine is None:
            return self._result(outcome, f"{why}; no engine runs, as before")
        goes_on = "has died meanwhile and starts again" if self.deck.engine.is_dead else "goes on"
        return self._result(outcome, f"{why}; {self.before.name} {goes_on}")

    # --- the phases ------------------------------------------------------------------------------------------------

    async def _start_and_probe(
        self, profile: Profile, cancel: asyncio.Event | None, prepared: Engine | None = None
    ) -> Engine:
        with self.timeline.phase(PhaseName.START):
            engine = self._new = await self.deck.bring_up(profile, cancel, prepared)
        with self.timeline.phase(PhaseName.PROBE):
            await self.deck.probe(engine, PROBE_S, cancel)
        return engine

    async def _compute_ahead(self, new: Engine, old: Engine, bound: Bound) -> None:
        with self.timeline.phase(PhaseName.WARM):
            ahead = new.compute_ahead(old, bound, AHEAD_S)
            count = await self.deck.uninterrupted(ahead, self.cancel)
            self.timeline.note(f"{count} computed ahead" if count else "nothing to compute ahead")

    async def _hold_and_carry(self, old: Engine, bound: Bound) -> None:
        with self.timeline.phase(PhaseName.HOLD):
            self._requests.hold()
        with self.timeline.phase(PhaseName.CARRY):
            await self._requests.take(old, bound)
        await self._old.handed_over(old)

    async def _stop(self, old: Engine) -> None:
        """End the engine that has handed over."""
        if self.deck.engine is old:
            self.deck.uninstall()
        with self.timeline.phase(PhaseName.STOP):
            await self._end(old)

    def _end(self, old: Engine) -> asyncio.Task[None]:
        if self._ending is None:
            self._ending = asyncio.create_task(old.stop(_STOP_S, keep_app=True), name="end-old-engine")
        return self._ending

    async def _release(self, new: Engine, profile: Profile) -> None:
        """`new` serves. Raises `EngineStartError` if it fails instead, and then nothing of it is left."""
        with self.timeline.phase(PhaseName.RELEASE):
            first_token = asyncio.Event()
            self.deck.on_step(lambda step: first_token.set() if step.generation_tokens else None)
            try:
                has_carried = await self._requests.give(new)
                self._limits += self.deck.install(new, profile, self.order.who)
                if has_carried:
                    await self._requests.measure_gap(first_token)
            except EngineStartError as error:
                await new.stop(0.0)
                raise await self.deck.explained(error) from error
            finally:
                self.deck.on_step(None)

    # --- the outcome -----------------------------------------------------------------------------------------------

    def _switched(self, plan: SwitchPlan) -> SwitchResult:
        """The new profile serves."""
        self.times.remember(self.order.profile.digest, self.tier, self.timeline.durations())
        took_s = self.timeline.elapsed_s
        told = switch_words.switched(self.before, self.order.profile, self.tier, took_s, self._requests)
        died = f"; the engine of {self.before.name} had died meanwhile" if self._old.death is not None else ""
        return self._result(Outcome.SWITCHED, told + died + switch_words.left_out(plan.changes))

    def _result(self, outcome: Outcome, text: str, lines: Sequence[str] = ()) -> SwitchResult:
        return SwitchResult(
            outcome=outcome,
            text=text,
            from_profile=self.before.name,
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
            limits=list(self._limits),
            lines=list(lines),
        )
