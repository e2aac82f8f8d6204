"""What a real engine reported under a load, recorded by `tests.benchmarks.record_gauges`, put before a controller."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from pathlib import Path

from engine_host.engine.port import StepStats
from engine_host.profiles.throttle_table import Auto
from engine_host.throttle.auto import Action, AutoController
from engine_host.throttle.gauges import Gauges, StepFigures

RECORDINGS = Path(__file__).parent / "recordings"
LOOK_EVERY_S = 0.25
"""How often the host looks while no step comes."""


def rows(name: str) -> Iterator[tuple[float, StepStats, int]]:
    """Seconds since the load began, what was reported, and how many requests were in flight."""

    def number(text: str) -> float | None:
        return float(text) if text else None

    with (RECORDINGS / f"{name}.csv").open() as file:
        for row in csv.DictReader(file):
            running, waiting = number(row["running"]), number(row["waiting"])
            step = StepStats(
                0,
                running=None if running is None else int(running),
                waiting=None if waiting is None else int(waiting),
                kv_usage=number(row["kv"]),
                prompt_tokens=int(row["prompt_tokens"]),
                generation_tokens=int(row["generation_tokens"]),
                preemptions=int(row["preemptions"]),
                finished=int(row["finished"]),
                ttft_s=[float(sample) for sample in row["ttft_s"].split()],
            )
            yield float(row["at"]), step, int(row["inflight"])


class Replay:
    """The recorded engine was not throttled, so the controller observes: it is not to act on what it cannot change."""

    def __init__(self, name: str, settings: Auto, then_silent_s: float = 0.0, *, ends_at: float = math.inf) -> None:
        """`ends_at`: the engine says no more from then on, and no request is left; else when the recording ends."""
        self.controller = AutoController(settings)
        self.actions: list[tuple[float, Action]] = []
        self.gauges: list[Gauges] = []
        self._figures = StepFigures()
        at, inflight = 0.0, 0
        for due, step, inflight in rows(name):
            if due >= ends_at:
                inflight = 0
                break
            self._until(at, due, inflight)
            at = due
            self._figures.record(step, at)
            self._look(at, inflight)
        self._until(at, at + then_silent_s, inflight)

    def _until(self, at: float, due: float, inflight: int) -> None:
        while (at := at + LOOK_EVERY_S) < due:
            self._look(at, inflight)

    def _look(self, at: float, inflight: int) -> None:
        figures = self._figures
        gauges = Gauges(
            at=at,
            kv=figures.kv,
            running=figures.running,
            waiting=figures.waiting,
            preemptions_per_s=figures.preemptions_per_s(at),
            tokens_total=figures.tokens_total,
            finished_total=figures.finished_total,
            unfinished=inflight,
            silent_s=figures.silent_s(at),
            inflight=inflight,
        )
        self.gauges.append(gauges)
        if (action := self.controller.step(gauges)) is not None:
            self.actions.append((at, action))
