"""What the controller goes by: the figures of the last scheduler step, in one frozen value.

They are taken at every step, from the statistics that the engine hands to the telemetry store, not from a scrape. What
only changes when somebody asks (unfinished requests, latency percentiles) is asked for a few times a second, by whoever
runs the controller.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from engine_host.engine.port import StepStats

PREEMPTION_WINDOW_S = 3.0
"""Preemptions are counted over so long: the ten seconds of the console's rate would hold back a cut, and a raise."""
TTFT_WINDOW = "10s"
TTFT_WINDOW_S = 10.0
"""The shortest window that the telemetry store keeps of it."""
TTFT_SAMPLES = 5
"""Of fewer first tokens a 95th percentile says nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauges:
    """At one moment; None: unknown."""

    at: float
    """Monotonic seconds."""
    engine: int = 0
    """Another number is another engine."""
    kv: float | None = None
    """Of the fullest engine core, 0..1."""
    running: int | None = None
    waiting: int | None = None
    """For room in the engine. Those that it passes over for another reason (a grammar is compiled, say) need none."""
    preemptions_per_s: float | None = None
    ttft_p95_s: float | None = None
    """From the engine's own arrival: what a request waited at the gate is no fault of the engine's."""
    tokens_total: int = 0
    """Prompt and generated tokens so far: whether anything flows."""
    finished_total: int = 0
    unfinished: int | None = None
    """As the front end knows them, whether or not the scheduler still reports."""
    silent_s: float = 0.0
    """Since the last scheduler step."""
    inflight: int = 0
    """Choices that the gate has let through and that have not ended."""
    held: int = 0
    """Requests that wait at the gate."""
    is_paused: bool = False
    """The gate lets nothing through, whatever the cap."""
    bound: int | None = None
    """The profile's own cap, which the controller's never exceeds."""


class StepFigures:
    """Adds up the steps of the engine that serves. `record` is on the step path: a few comparisons and additions."""

    def __init__(self) -> None:
        self.tokens_total = 0
        self.finished_total = 0
        self._cores: dict[int, tuple[int, int, float | None]] = {}
        """By engine core: running, waiting, KV usage."""
        self._preempted: deque[tuple[float, int]] = deque()
        self._last_step: float | None = None

    def record(self, step: StepStats, at: float) -> None:
        self._last_step = at
        self.tokens_total += step.prompt_tokens + step.generation_tokens
        self.finished_total += step.finished
        if step.preemptions:
            self._preempted.append((at, step.preemptions))
        if step.running is not None:
            self._cores[step.engine_index] = (step.running, step.waiting or 0, step.kv_usage)

    def forget(self) -> None:
        """Another engine serves, or none."""
        self._cores.clear()
        self._preempted.clear()
        self._last_step = None

    @property
    def kv(self) -> float | None:
        return max((kv for _, _, kv in self._cores.values() if kv is not None), default=None)

    @property
    def running(self) -> int | None:
        return sum(running for running, _, _ in self._cores.values()) if self._cores else None

    @property
    def waiting(self) -> int | None:
        return sum(waiting for _, waiting, _ in self._cores.values()) if self._cores else None

    def silent_s(self, at: float) -> float:
        return 0.0 if self._last_step is None else at - self._last_step

    def preemptions_per_s(self, at: float) -> float | None:
        """None before the first step."""
        while self._preempted and self._preempted[0][0] <= at - PREEMPTION_WINDOW_S:
            self._preempted.popleft()
        if self._last_step is None:
            return None
        return sum(count for _, count in self._preempted) / PREEMPTION_WINDOW_S
