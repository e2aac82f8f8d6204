"""What every K would give at the concurrency of now, and which K to run. Pure: figures in, a verdict out.

A decode step drafts K tokens a request and verifies them; a request then has E(K) tokens more. Its tokens per second
are E(K) / T(K), T(K) being the time of a step. Speculation's speed-up is that against 1 / T(0).

**E(K)** = 1 + sum of P(i) for i = 1..K, with P(i) as in `acceptance`. With all conditional rates equal to c that is
(1 - c^(K+1)) / (1 - c), equation 1 of Leviathan, Kalman and Matias, "Fast Inference from Transformers via Speculative
Decoding" (2023); it is also what vLLM reports as mean acceptance length, 1 + accepted / drafts. Methods that look
drafts up (n-gram, suffix) find none at times: the sum then counts for the share of draft tokens asked for that was
drafted. Where the steps measured at a K yielded clearly more or less than that, they are believed: text that is easy to
draft is passed in fewer steps the larger K is, so the share and the rates themselves depend on K.

**T(K)** is measured at the Ks that have run (`step_costs`). Between two of them it lies on the straight line: a step
costs a base, and for each K one more pass of the draft model and one more token a request to verify, both
proportional to K while the number of requests stands. Beyond them it goes on along the line of least squares through
all of them, upwards along that through the last two if it is steeper: verification is free while the target's weights
take longer to read than its tokens to compute, and no longer (the corner of the roofline).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engine_host.telemetry.acceptance import PositionRates
from engine_host.telemetry.step_costs import KCost, Measured

Floats = npt.NDArray[np.float64]

TOLERATED = 1.05
"""The K in force is right as long as no other can be this much better, what measurement may be wrong by included: so
what is called right is within 5 % of the best."""
WORTH = 1.02
"""Below this gain no change is worth it, and the K in force is right unless measurement may be wrong by as much as is
tolerated: two Ks that are all but equal need not be told apart."""
AHEAD = 2
"""Positions beyond those counted that may be recommended: how acceptance goes on there is inferred."""

_EQUAL = 0.99
"""Within this of the best, a K whose step time is measured is preferred."""
_CLEARLY = 3.0
"""Standard errors between a yield measured and inferred, beyond which the measured one is believed."""
_SURE = 2.0
"""Standard errors that a gain may be off by."""


@dataclass(frozen=True)
class Outlook:
    """Of every K from 0 to the largest possible, at `concurrency` requests a step; arrays are [k_max + 1]."""

    concurrency: int
    measured: tuple[int, ...]
    """Ks whose step time was measured, at least two, ascending."""
    rates: PositionRates
    tokens: Floats
    """A request and step, E(K)."""
    step_s: Floats
    least_step_s: Floats
    """The least that it may be where it is not measured, each draft token costing no less than the one before."""
    error: Floats
    """Standard error of `step_s`, as a fraction."""

    @property
    def tokens_per_s(self) -> Floats:
        """Of one request."""
        return self.tokens / self.step_s

    def gain(self, k: int, over: int) -> float:
        return float(self.tokens_per_s[k] / self.tokens_per_s[over])

    def gain_error(self, k: int, over: int) -> float:
        """Standard error of `gain`, as a fraction. Both share the tokens accepted at the positions of the shorter."""
        longer = max(k, over)
        tokens = self.rates.accepted_error(min(k, over), longer) / self.tokens[longer]
        return float(np.sqrt(self.error[k] ** 2 + self.error[over] ** 2 + tokens**2))


@dataclass(frozen=True)
class Verdict:
    """`best` is the K to run; the K in force itself if no other is worth a change."""

    best: int
    gain: float
    """Of the best over the K in force; 1.0 if that is it."""
    is_sure: bool = True
    """False: the gain is within what measurement may be wrong by."""
    error: float = 0.0
    """What the gain may be wrong by, as a fraction: two standard errors."""
    worth_a_try: int | None = None
    """An unmeasured K that might yet be better."""


def outlook(rates: PositionRates, measured: Measured) -> Outlook | None:
    """None unless steps at two Ks have been measured: what a draft token costs is unknown before."""
    costs = {k: cost for k, cost in sorted(measured.by_k.items()) if cost.is_enough and k <= len(rates.rates)}
    if len(costs) < 2:
        return None
    ks = np.arange(len(rates.rates) + 1)
    times = _StepTimes(costs)
    step_s = times.at(ks)
    return Outlook(
        concurrency=measured.concurrency,
        measured=tuple(costs),
        rates=rates,
        tokens=_tokens(rates, costs, ks),
        step_s=step_s,
        least_step_s=np.minimum(times.at_least(ks), step_s),
        error=times.error(ks) / step_s,
    )


def judge(outlook: Outlook, k: int) -> Verdict:
    """Which K to run where `k` is in force."""
    reachable = min(len(outlook.rates.rates), max(outlook.rates.known + AHEAD, k))
    speed = outlook.tokens_per_s[: reachable + 1]
    equal = np.flatnonzero(speed >= speed.max() * _EQUAL)
    best = int(max(equal, key=lambda other: (other in outlook.measured, speed[other])))
    gain, error = outlook.gain(best, k), _SURE * outlook.gain_error(best, k)
    if gain * (1 + error) <= TOLERATED or (gain <= WORTH and error <= TOLERATED - 1):
        return Verdict(k, 1.0, worth_a_try=_worth_a_try(outlook, k, reachable))
    return Verdict(best, gain, is_sure=gain * (1 - error) > 1, error=error)


def _worth_a_try(outlook: Outlook, k: int, reachable: int) -> int | None:
    """The unmeasured K that promises most: between measured ones if its draft tokens cost the least they can, beyond
    them if measurement was wrong by what it may be."""
    promise = outlook.tokens / outlook.least_step_s / outlook.tokens_per_s[k]
    for other in range(len(promise)):
        if not outlook.measured[0] <= other <= outlook.measured[-1]:
            promise[other] = outlook.gain(other, k) * (1 + _SURE * outlook.gain_error(other, k))
    promise[list(outlook.measured)] = 0.0
    best = int(promise[: reachable + 1].argmax())
    return best if promise[best] > TOLERATED else None


def _tokens(rates: PositionRates, costs: Mapping[int, KCost], ks: npt.NDArray[np.int64]) -> Floats:
    drafting = {k: cost for k, cost in costs.items() if k > 0}
    accepted = np.concatenate([[0.0], np.cumsum(rates.rates)])
    share = np.interp(ks, list(drafting), [min(1.0, cost.drafted / k) for k, cost in drafting.items()])
    tokens = 1 + share * accepted
    off = [0.0]
    for k, cost in drafting.items():
        mean, deviation = rates.accepted(0, k)
        # A request has a draft in a step, or none: the variance of a mixture.
        variance = share[k] * (deviation**2 + mean**2) - (share[k] * mean) ** 2
        error = np.sqrt(max(variance, 0.0) / cost.request_steps)
        seen = 1 + cost.accepted
        off.append(float(np.log(seen / tokens[k])) if abs(seen - tokens[k]) > _CLEARLY * error else 0.0)
    believed: Floats = tokens * np.exp(np.interp(ks, [0, *drafting], off))
    return believed


class _StepTimes:
    """T(K) from those measured; `ks` is an array of Ks."""

    def __init__(self, costs: Mapping[int, KCost]) -> None:
        self._k = np.array(list(costs))
        self._took = np.array([cost.step_s for cost in costs.values()])
        self._errors = self._took * [cost.error for cost in costs.values()]

    def at(self, ks: npt.NDArray[np.int64]) -> Floats:
        k, took = self._k, self._took
        off = k - k.mean()
        line = max(float(off @ took / (off @ off)), 0.0)
        steepest = max(line, float((took[-1] - took[-2]) / (k[-1] - k[-2])))
        times = np.interp(ks, k, took)
        times += np.where(ks > k[-1], steepest * (ks - k[-1]), 0.0)
        times -= np.where(ks < k[0], line * (k[0] - ks), 0.0)
        # A step at K verifies 1 + K tokens a request: one of them costs at least its share.
        least = np.where(ks < k[0], took[0] * (1 + ks) / (1 + k[0]), 0.0)
        return np.asarray(np.maximum(times, least))

    def error(self, ks: npt.NDArray[np.int64]) -> Floats:
        """Standard error of `at`, seconds. Beyond the measured Ks a small error is levered into a large one."""
        first = np.clip(np.searchsorted(self._k, ks, side="right") - 1, 0, len(self._k) - 2)
        return self._through(first, ks)[1]

    def at_least(self, ks: npt.NDArray[np.int64]) -> Floats:
        """No less than at the next smaller measured K; nor, each draft token costing no less than the one before, than
        on a line through two measured Ks and beyond both, as far as that line is certain."""
        below = np.clip(np.searchsorted(self._k, ks, side="right") - 1, 0, None)
        least = self._took[below]
        for first in range(len(self._k) - 1):
            line, error = self._through(np.full(len(ks), first), ks)
            is_beyond = (ks < self._k[first]) | (ks > self._k[first + 1])
            least = np.where(is_beyond, np.maximum(least, line - _SURE * error), least)
        return least

    def _through(self, first: npt.NDArray[np.int64], ks: npt.NDArray[np.int64]) -> tuple[Floats, Floats]:
        """The line through two neighbours, the `first` of them given by index, and its standard error; seconds."""
        weight = (ks - self._k[first]) / (self._k[first + 1] - self._k[first])
        line = (1 - weight) * self._took[first] + weight * self._took[first + 1]
        return line, np.hypot((1 - weight) * self._errors[first], weight * self._errors[first + 1])
