"""An engine whose acceptance and step times are known: what it tells the host, and what a sweep over K would find."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from engine_host.engine.port import SpeculationStep, StepStats
from engine_host.live.sample import STEP, DialName, DialRange
from engine_host.telemetry.speculation_advisor import Advice, SpeculationAdvisor
from engine_host.telemetry.store import TelemetryStore
from tests.unit.scripted_scheduler import ScriptedScheduler, live_sample

PAUSES = 0.01
"""Of the steps, that take ten times as long: something else had the machine."""


Cost = Callable[[int], float]
"""Seconds of a step by K."""


def draft_heavy(base: float, draft: float) -> Cost:
    """K passes of a draft model; verification is free."""
    return lambda k: base * (1 + draft * k)


def verification_heavy(base: float, token: float) -> Cost:
    """A large batch: each token verified costs."""
    return lambda k: base * (1 + token * (1 + k))


def with_a_corner(base: float, token: float, corner: float) -> Cost:
    """Verification is free up to a number of tokens: the roofline."""
    return lambda k: base * (1 + 0.02 * k + token * max(0.0, k - corner))


@dataclass
class SpeculatingEngine:
    """`conditional`: P(i accepted | i - 1 accepted), one a position."""

    conditional: Sequence[float]
    cost: Cost
    requests: int = 16
    share: float = 1.0
    """Of requests for which a draft is found in a step."""
    noise: float = 0.0
    """Standard deviation of the logarithm of step times."""
    seed: int = 0
    now: float = 1000.0
    scheduler: ScriptedScheduler = field(init=False)

    def __post_init__(self) -> None:
        self._random = np.random.default_rng(self.seed)
        self.scheduler = ScriptedScheduler({DialName.SPECULATIVE_TOKENS: DialRange(0, self.k_max, self.k_max)})
        self.store = TelemetryStore(lambda: self.now)
        self.advisor = SpeculationAdvisor(self.store.acceptance, lambda: self.now)
        self.k = self.k_max

    @property
    def k_max(self) -> int:
        return len(self.conditional)

    def true_tokens(self, k: int) -> float:
        """A request and step."""
        return 1 + self.share * float(np.cumprod(self.conditional)[:k].sum())

    def true_speed(self, k: int) -> float:
        return self.true_tokens(k) / self.cost(k)

    @property
    def best_speed(self) -> float:
        """Of a sweep."""
        return max(self.true_speed(k) for k in range(self.k_max + 1))

    def run(self, k: int, seconds: int = 10, *, requests: int | None = None) -> None:
        """Decode with `k` in force."""
        self.k = k
        self.scheduler.newest = [live_sample(dials={DialName.SPECULATIVE_TOKENS: k})]
        for _ in range(seconds):
            self._run_a_second(k, requests or self.requests)
            self.advisor.collect(self.scheduler)

    def _run_a_second(self, k: int, requests: int) -> None:
        steps = max(1, round(1 / self.cost(k)))
        times = self.cost(k) * np.exp(self._random.normal(0, self.noise, steps))
        if self.noise:
            times = np.where(self._random.random(steps) < PAUSES, times * 10, times)
        drafts = self._random.binomial(requests, self.share, steps) if k else np.zeros(steps, np.int64)
        passed = [drafts]
        for conditional in self.conditional[:k]:
            passed.append(self._random.binomial(passed[-1], conditional))
        ran = np.zeros(steps, STEP)
        ran["at"] = self.now + np.linspace(0, 1, steps, endpoint=False)
        ran["took_s"], ran["requests"], ran["k"], ran["is_decode"] = times, requests, k, 1
        ran["drafted"], ran["accepted"] = drafts * k, sum(passed[1:], np.zeros(steps, np.int64))
        ran["tokens"] = requests + ran["drafted"]
        self.scheduler.ran = ran
        counts = [int(count.sum()) for count in passed]
        if k:
            step = SpeculationStep(counts[0], counts[0] * k, sum(counts[1:]), [counts[0]] * k, counts[1:])
            self.store.record(StepStats(0, speculation=step))
        self.now += 1.0

    def advice(self) -> Advice:
        return self.advisor.advice(self.scheduler, self.k_max)

    def follow(self, rounds: int = 12) -> None:
        """What an operator does: run what is asked for, take what is recommended, until K is right."""
        for _ in range(rounds):
            said = self.advice().recommendation
            assert said is not None
            k = self.k
            if said.try_k is not None:
                assert said.try_s is not None
                self.run(said.try_k, said.try_s)
            elif said.k == k:
                return
            self.run(k if said.k is None else said.k)
        raise AssertionError(f"not done after {rounds} rounds: {said.text}")
