"""The scheduler's last word on its queue and its KV cache, how far it is believed, and when a queue stands still.

vLLM reports when it steps, so after a mass abort its gauges freeze at what they were. What the front end knows, the
unfinished requests, overrules them once the scheduler has been silent for a second. Where the scheduler itself can be
looked into, `live_figures` knows better; whether a queue hangs or is stuck is judged here in any case.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from engine_host.engine.port import Backlog, StepStats

HUNG_AFTER_S = 30.0
"""Unfinished requests and no scheduler step for so long: the engine hangs. The slowest honest step, a full prefill
batch on CPU, takes seconds."""
HUNG_WITHOUT_TOKENS_S = 120.0
"""Steps go on but requests run without any token for so long."""
STUCK_AFTER_S = 10.0
"""Requests wait and none runs for so long: nothing will start them."""

_FRESH_S = 1.0
"""The scheduler's gauges are taken at their word for so long after a step."""


@dataclass(frozen=True, slots=True)
class _OfCore:
    """The last word on one engine core."""

    running: int
    waiting: int
    deferred: int
    kv_usage: float


class Gauges:
    """Of the engine that serves, all its cores. Times by `clock`, which only goes forward. A `backlog` is None while no
    engine is up."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._by_core: dict[int, _OfCore] = {}
        self._last_step: float | None = None
        self._last_token: float | None = None
        self._unfinished_since: float | None = None
        self._nothing_runs_since: float | None = None

    def stepped(self, step: StepStats, now: float) -> None:
        """On the step path."""
        self._last_step = now
        if step.generation_tokens:
            self._last_token = now
        if step.running is not None:
            self._by_core[step.engine_index] = _OfCore(
                step.running, step.waiting or 0, step.waiting_deferred or 0, step.kv_usage or 0.0
            )

    def forget(self) -> None:
        """An engine that ended holds no requests and no blocks."""
        self._by_core.clear()
        self._last_step = self._last_token = self._unfinished_since = self._nothing_runs_since = None

    @property
    def last_step_age_s(self) -> float | None:
        return None if self._last_step is None else self._clock() - self._last_step

    def is_idle(self, backlog: Backlog) -> bool:
        """No request left and no step for a second: the gauges, if any, are history."""
        return backlog.unfinished == 0 and self._silent_s() > _FRESH_S

    def kv_usage_by_engine(self, backlog: Backlog | None) -> list[float]:
        """KV usage of every engine core, 0..1, by engine index; empty while unknown. With no unfinished request left no
        block is in use, whatever was said last."""
        if backlog is None:
            return []
        if self.is_idle(backlog):
            return [0.0] * max(1, len(self._by_core))
        return [self._by_core[index].kv_usage for index in sorted(self._by_core)]

    def requests(self, backlog: Backlog) -> tuple[int, int, int]:
        """`(running, waiting, deferred)`: the scheduler's word while it is fresh, corrected by what the front end
        knows once the scheduler has been silent for a second."""
        if self.is_idle(backlog):
            return 0, 0, 0
        running = sum(core.running for core in self._by_core.values())
        waiting = sum(core.waiting for core in self._by_core.values())
        deferred = sum(core.deferred for core in self._by_core.values())
        if self._silent_s() > _FRESH_S:
            running = min(running, backlog.unfinished)
            deferred = min(deferred, backlog.unfinished - running)
            waiting = backlog.unfinished - running - deferred
        return running, waiting, deferred

    def watch(self, backlog: Backlog | None) -> None:
        """Remember since when there has been work: silence and missing tokens only count from then on. To be called
        before `requests` and `stalled_reason`, and at least once a second."""
        if backlog is None or backlog.unfinished == 0:
            self._unfinished_since = self._nothing_runs_since = None
            if backlog is not None and self.is_idle(backlog):
                # Frozen gauges of requests that are gone must not come back with the next request.
                for index in self._by_core:
                    self._by_core[index] = _OfCore(0, 0, 0, 0.0)
        elif self._unfinished_since is None:
            self._unfinished_since = self._clock()

    def stalled_reason(self, running: int, waiting: int) -> str | None:
        """`hung`: requests run and no token comes. `stuck`: requests wait and none runs. None: neither."""
        now = self._clock()
        since = self._unfinished_since
        if since is None:
            return None
        silent_for = now - max(since, self._last_step or 0.0)
        without_token_for = now - max(since, self._last_token or 0.0)
        if running or not waiting:
            self._nothing_runs_since = None
        elif self._nothing_runs_since is None:
            self._nothing_runs_since = now
        if silent_for >= HUNG_AFTER_S:
            return "hung"
        if self._nothing_runs_since is not None:
            return "stuck" if now - self._nothing_runs_since >= STUCK_AFTER_S else None
        return "hung" if without_token_for >= HUNG_WITHOUT_TOKENS_S else None

    def _silent_s(self) -> float:
        return math.inf if self._last_step is None else self._clock() - self._last_step
