"""Runs the automatic controller: gives it the figures of every scheduler step, and puts in force what it answers.

`on_step` is called on the event loop at every step, behind the telemetry store; a timer looks too, since an engine that
has nothing to do, or hangs, takes no steps. Nothing raised here reaches the engine's output loop: a controller that
fails is taken out, its cap with it, and the operator is told.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Protocol

import msgspec

from engine_host.engine.host_state import EventSink
from engine_host.engine.port import Backlog, Engine, StepStats
from engine_host.profiles.throttle_table import Auto
from engine_host.protocol.events import Severity
from engine_host.protocol.throttling import AUTO, AutoGauge, AutoMode
from engine_host.telemetry.store import TelemetryStore
from engine_host.throttle import auto_words
from engine_host.throttle.auto import AutoController
from engine_host.throttle.auto_dials import AutoDials
from engine_host.throttle.gauges import TTFT_SAMPLES, TTFT_WINDOW, Gauges, StepFigures

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 0.25
"""Between two looks of the timer."""


class GateFigures(Protocol):
    """Of `gateway.gate.Gate`."""

    @property
    def inflight(self) -> int: ...
    @property
    def held(self) -> int: ...


class Policy(Protocol):
    """Of `throttle.throttle.Throttle`."""

    @property
    def auto_settings(self) -> Auto:
        """What the profile says."""

    @property
    def auto_mode(self) -> AutoMode:
        """What the profile or an operator says."""

    @property
    def auto_mode_moves(self) -> int:
        """How often the mode became another: each time what the controller had put in force was taken back."""

    @property
    def auto_overruled_by(self) -> str | None:
        """Who set the cap that wins over the controller's."""

    @property
    def bound(self) -> int | None:
        """The profile's own cap on requests in flight."""

    @property
    def is_closed(self) -> bool:
        """Paused or draining: nothing is let through."""

    def propose(self, cap: int | None, text: str) -> None:
        """Put the controller's cap in force, or say that it would be, as the mode has it; and tell it."""


class Pilot:
    def __init__(
        self,
        policy: Policy,
        gate: GateFigures,
        store: TelemetryStore,
        engine: Callable[[], Engine | None],
        dials: AutoDials,
        on_event: EventSink,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._policy = policy
        self._gate = gate
        self._store = store
        self._engine_now = engine
        self._dials = dials
        self._on_event = on_event
        self._clock = clock
        self._figures = StepFigures()
        self._engine: Engine | None = None
        self._engines = 0
        self._backlog: Backlog | None = None
        self._ttft_p95_s: float | None = None
        self._settings = Auto()
        self._mode_moves = 0
        self._controller = AutoController(self._settings)
        self._text = ""
        self._has_failed = False

    # --- read ------------------------------------------------------------------------------------------------------

    @property
    def cap(self) -> int | None:
        """That it has put in force, or would have."""
        return self._controller.cap

    def gauges(self) -> list[AutoGauge]:
        return self._controller.gauges(self._clock())

    # --- at every step, and between steps --------------------------------------------------------------------------

    def on_step(self, step: StepStats) -> None:
        """Raises nothing: an exception would end vLLM's output loop."""
        try:
            self._figures.record(step, self._clock())
            if self._policy.auto_mode is not AutoMode.OFF:
                self._fly()
        except Exception:
            self._fail()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            try:
                self.look()
            except Exception:
                self._fail()
            try:  # also when the look has failed: what it had turned down has to come back
                await self._settle_dials()
            except Exception:
                self._fail()

    def look(self) -> None:
        """What the timer does: take the figures that only change when somebody asks, and one step of the controller."""
        engine = self._engine_now()
        if engine is not self._engine:
            self._engine = engine
            self._engines += 1
            self._figures.forget()
        self._backlog = self._ask_backlog(engine)
        if self._policy.auto_mode is AutoMode.OFF:
            self._withdraw("automatic throttling is off")
            return
        if self._settings.ttft_p95_enter_s is not None:
            ttft = self._store.ttft(TTFT_WINDOW)
            self._ttft_p95_s = ttft.p95_s if ttft.n >= TTFT_SAMPLES else None
        self._fly()

    def _ask_backlog(self, engine: Engine | None) -> Backlog | None:
        """None while unknown: an engine that is dying may not answer."""
        if engine is None or engine.is_dead:
            return None
        return engine.backlog()

    def _fly(self) -> None:
        policy, controller = self._policy, self._controller
        if self._has_failed:
            return
        had, was_thought = controller.cap, controller.is_observing
        if policy.auto_mode_moves != self._mode_moves:
            self._mode_moves = policy.auto_mode_moves
            controller.withdraw()  # also if the mode is the former one again: its cap went with the one between
        if (settings := _in_force(policy)) != self._settings:
            self._settings = settings
            controller.retune(settings)
        if had is not None and controller.cap is None:
            why = f"automatic throttling is set to {settings.mode}"
            self._tell(None, auto_words.gone(why, had, was_thought=was_thought))
        if self._engine is None or self._engine.is_dead:
            self._withdraw("no engine serves")
        elif (who := policy.auto_overruled_by) is not None:
            self._withdraw(f"{who} has set a cap")
        elif (action := controller.step(self._gauges())) is not None:
            self._tell(action.cap, action.text)

    def _gauges(self) -> Gauges:
        figures, at = self._figures, self._clock()
        return Gauges(
            at=at,
            engine=self._engines,
            kv=figures.kv,
            running=figures.running,
            waiting=figures.waiting,
            preemptions_per_s=figures.preemptions_per_s(at),
            ttft_p95_s=self._ttft_p95_s,
            tokens_total=figures.tokens_total,
            finished_total=figures.finished_total,
            unfinished=None if self._backlog is None else self._backlog.unfinished,
            silent_s=figures.silent_s(at),
            inflight=self._gate.inflight,
            held=self._gate.held,
            is_paused=self._policy.is_closed,
            bound=self._policy.bound,
        )

    def _withdraw(self, why: str) -> None:
        """No cap of its own, and no dwell time that began before; the figures are shown on."""
        had, was_thought = self._controller.cap, self._controller.is_observing
        self._controller.withdraw()
        self._controller.watch(self._gauges())
        if had is not None:
            self._tell(None, auto_words.gone(why, had, was_thought=was_thought))

    def _tell(self, cap: int | None, text: str) -> None:
        self._text = text
        self._policy.propose(cap, text)

    async def _settle_dials(self) -> None:
        is_on = self._policy.auto_mode is AutoMode.ON and not self._has_failed
        cap = self._controller.cap if is_on else None
        await self._dials.settle(self._settings.dials, cap, self._controller.full, self._text)

    def _fail(self) -> None:
        if self._has_failed:
            return
        self._has_failed = True
        logger.exception("the automatic throttle failed and is taken out")
        text = "automatic throttling failed and is off until the host starts anew; its cap is gone"
        self._on_event("throttle.auto.failed", text, severity=Severity.ERROR, who=AUTO)
        try:
            self._controller.withdraw()
            self._policy.propose(None, text)
        except Exception:
            logger.exception("the cap of the automatic throttle may still be in force")


def _in_force(policy: Policy) -> Auto:
    settings = policy.auto_settings
    return settings if settings.mode == policy.auto_mode else msgspec.structs.replace(settings, mode=policy.auto_mode)
