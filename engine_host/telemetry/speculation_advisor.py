"""Speed-up and recommendation for the engine that serves, at most once a second: its steps are collected here, put
together with the acceptance that the store counts, and judged by `speculation_model`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engine_host.engine.port import LiveScheduler
from engine_host.live.sample import DialName
from engine_host.protocol.snapshot import WINDOWS
from engine_host.protocol.speculation import Recommendation
from engine_host.telemetry import speculation_words as words
from engine_host.telemetry.acceptance import Acceptance, position_rates
from engine_host.telemetry.speculation_model import judge, outlook
from engine_host.telemetry.step_costs import Measured, StepCosts

EVERY_S = 1.0
ACCEPTANCE_WINDOWS_S = (WINDOWS["1m"], WINDOWS["5m"])
"""Shortest first. Ten seconds are too few drafts of one request for figures that do not jump."""


@dataclass(frozen=True)
class Advice:
    k: int | None = None
    """In force."""
    speed_up: float | None = None
    """Tokens per second against K = 0."""
    recommendation: Recommendation | None = None


class SpeculationAdvisor:
    """Used from the event loop alone. `acceptance` gives the counts of the last so many seconds."""

    def __init__(self, acceptance: Callable[[float], Acceptance], clock: Callable[[], float] = time.monotonic) -> None:
        self._acceptance = acceptance
        self._clock = clock
        self._engine: LiveScheduler | None = None
        self._costs = StepCosts()
        self._advised = -math.inf
        self._advice = Advice()
        self._dial: int | None = None

    def collect(self, live: LiveScheduler | str | None) -> None:
        """Take the steps since the last call; to be called about once a second also while nobody looks, since the
        scheduler keeps only its last ones."""
        if live is not self._engine:
            self._engine = None if isinstance(live, str) else live
            self._costs = StepCosts()
            self._advised = -math.inf
        if self._engine is not None:
            self._costs.take(self._engine.steps(self._costs.newest))

    def advice(self, live: LiveScheduler | str | None, k_max: int | None) -> Advice:
        """`live` is None while no engine is up, `k_max` while it does not speculate."""
        if live is None or not k_max:
            return Advice()
        if isinstance(live, str):
            return Advice(k_max, recommendation=words.without_scheduler(live))
        if DialName.SPECULATIVE_TOKENS not in live.ranges:
            return Advice(k_max, recommendation=words.not_settable(k_max))
        dial = _dial(live)
        if live is not self._engine or dial != self._dial or self._clock() - self._advised >= EVERY_S:
            self.collect(live)
            # Where the dial stands at the start, a profile's own schedule, K by batch size, may say less. Not where it
            # has just been turned: the last steps are of before.
            may_be_less = dial == self._dial == live.ranges[DialName.SPECULATIVE_TOKENS].start
            drafted = self._costs.recent_k(self._clock()) if may_be_less else None
            self._advised, self._dial = self._clock(), dial
            k = min(k_max, dial if drafted is None else drafted)
            windows = [self._acceptance(span_s) for span_s in ACCEPTANCE_WINDOWS_S]
            self._advice = advise(k, k_max, windows, self._costs.read(self._clock()))
        return self._advice


def _dial(live: LiveScheduler) -> int:
    start = live.ranges[DialName.SPECULATIVE_TOKENS].start
    return max((sample.dials.get(DialName.SPECULATIVE_TOKENS, start) for sample in live.samples()), default=start)


def advise(k: int, k_max: int, windows: Sequence[Acceptance], measured: Measured | None) -> Advice:
    """The verdict where `k` is in force. `windows`: acceptance, the shortest first."""
    speed_up = 1.0 if k == 0 else None
    if measured is None:
        return Advice(k, speed_up, words.nothing_decoded())
    cost, concurrency = measured.by_k.get(k), measured.concurrency
    if cost is None or not cost.is_enough:
        return Advice(k, speed_up, words.too_few_steps(k, cost, concurrency))
    rates = position_rates(windows, min(k_max, len(windows[-1].reached)))
    if not rates.known:
        return Advice(k, speed_up, words.no_acceptance(k, int(windows[-1].reached[0]), k_max, concurrency, cost.step_s))
    seen = outlook(rates, measured)
    if seen is None:
        return Advice(k, speed_up, words.one_k_only(k, k_max, concurrency, cost.step_s))
    return Advice(k, seen.gain(k, over=0), words.recommendation(seen, judge(seen, k), k))
