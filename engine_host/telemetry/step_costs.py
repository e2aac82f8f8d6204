"""What a decode step takes and yields at each K: the scheduler's step records, thinned and kept for minutes.

The scheduler keeps its last few thousand steps, which may be ten seconds of them; a K tried two minutes ago must still
count. So the steps of one second at one K and about one concurrency are kept as one row, in a ring: memory does not
depend on load or time. The spread of a K's rows is also an honest measure of noise; steps that follow each other are
not independent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from engine_host.live.sample import STEP

MAX_AGE_S = 300.0
"""Older steps do not count: contexts have grown, other requests run. Also the longest window of acceptance."""
RECENT_S = 10.0
"""The concurrency of now is that of the steps of so many seconds."""
MIN_STEPS = 30
MIN_SECONDS = 3
"""Of steps at one K, before its figures are believed: a single second may hold a pause of anything."""
ROWS = 4096
"""A second has a row for every K and concurrency met in it: two or three, thirty at worst."""

_SLOW = 2.0
"""A step of more than so many times the median of its second counts as that many: it waited for something else."""
_CONCURRENCY_STEP = 1.1
"""Ratio of the concurrencies put into one row; up to ten requests each has its own."""
_SIMILAR = 1 / 8
"""How far the concurrency of a row may be from that of now."""

_LEAST_SPREAD = 0.01
"""From second to second, as a fraction: three seconds may agree by chance."""

_ROW = np.dtype(
    [
        ("at", "f8"),  # of its last step
        ("k", "i4"),
        ("steps", "i8"),
        ("requests", "i8"),  # summed over its steps
        ("drafted", "i8"),
        ("accepted", "i8"),
        ("took_s", "f8"),  # mean
    ]
)


@dataclass(frozen=True, slots=True)
class KCost:
    """Measured at one K."""

    steps: int
    seconds: int
    """In which those steps fell."""
    request_steps: int
    """Requests, summed over its steps."""
    step_s: float
    error: float
    """Standard error of `step_s`, as a fraction of it."""
    drafted: float
    """A request and step: less than K where a method finds nothing to propose."""
    accepted: float
    """A request and step."""

    @property
    def is_enough(self) -> bool:
        return self.steps >= MIN_STEPS and self.seconds >= MIN_SECONDS


@dataclass(frozen=True, slots=True)
class Measured:
    """At about `concurrency` requests a step."""

    concurrency: int
    by_k: Mapping[int, KCost]


class StepCosts:
    """Times are monotonic seconds."""

    def __init__(self) -> None:
        self._rows = np.zeros(ROWS, _ROW)
        self._written = 0
        self._last: npt.NDArray[Any] = np.empty(0, STEP)
        """The two steps before those to come: a step counts only if K was the same in them."""

    @property
    def newest(self) -> float:
        """When the last step taken ended; to be asked for those after it."""
        return float(self._last["at"][-1]) if len(self._last) else -np.inf

    def recent_k(self, now: float) -> int | None:
        """What the steps of the last second drafted; None if there were none."""
        return int(self._last["k"][-1]) if self.newest > now - 1.0 else None

    def take(self, steps: npt.NDArray[Any]) -> None:
        """Add `STEP` records, oldest first, each once. Of use are pure decode steps under a K that has settled: a
        step verifies what the one before it drafted, and asynchronous scheduling is one step ahead."""
        joined = np.concatenate([self._last, steps])
        self._last = joined[-2:].copy()
        if len(joined) < 3:
            return
        k = joined["k"]
        is_settled = (k[2:] == k[1:-1]) & (k[2:] == k[:-2])
        counted = joined[2:]
        counted = counted[is_settled & (counted["is_decode"] > 0) & (counted["requests"] > 0)]
        if len(counted):
            self._add(_rows(counted))

    def _add(self, rows: npt.NDArray[Any]) -> None:
        rows = rows[-ROWS:]
        self._rows[(self._written + np.arange(len(rows))) % ROWS] = rows
        self._written += len(rows)

    def read(self, now: float) -> Measured | None:
        """What is known at the concurrency of now; None while nothing is decoded."""
        rows = self._rows[: min(self._written, ROWS)]
        rows = rows[rows["at"] > now - MAX_AGE_S]
        recent = rows[rows["at"] > now - RECENT_S]
        if not len(recent):
            return None
        concurrency = _median(recent["requests"] / recent["steps"], recent["steps"])
        rows = rows[np.abs(rows["requests"] / rows["steps"] - concurrency) <= concurrency * _SIMILAR]
        return Measured(round(concurrency), {int(k): _cost(rows[rows["k"] == k]) for k in np.unique(rows["k"])})


def _rows(steps: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """One row for each second, K and concurrency among `STEP` records, oldest first.

    Step times are averaged, not their median taken: where drafts vary in length they are of more than one kind, and
    throughput is tokens by the sum of times.
    """
    like = np.round(np.log(steps["requests"]) / np.log(_CONCURRENCY_STEP)).astype(np.int64)
    key = (steps["at"].astype(np.int64) << 32) | (steps["k"].astype(np.int64) << 16) | like
    order = np.lexsort((steps["took_s"], key))
    steps, key = steps[order], key[order]
    starts = np.flatnonzero(np.concatenate([[True], key[1:] != key[:-1]]))
    counts = np.diff(np.append(starts, len(key)))
    median = steps["took_s"][starts + counts // 2].astype(np.float64)
    took = np.minimum(steps["took_s"], np.repeat(median * _SLOW, counts))
    rows = np.zeros(len(starts), _ROW)
    rows["at"] = np.maximum.reduceat(steps["at"], starts)
    rows["k"] = steps["k"][starts]
    rows["steps"] = counts
    for name in ("requests", "drafted", "accepted"):
        rows[name] = np.add.reduceat(steps[name], starts, dtype=np.int64)
    rows["took_s"] = np.add.reduceat(took, starts) / counts
    return rows


def _cost(rows: npt.NDArray[Any]) -> KCost:
    steps, requests = int(rows["steps"].sum()), int(rows["requests"].sum())
    step_s = _median(rows["took_s"], rows["steps"])
    # 1.48 median deviations are a standard deviation of normal noise; a median's error is 1.25 times a mean's.
    spread = 1.48 * _median(np.abs(rows["took_s"] - step_s), rows["steps"])
    seconds = len(np.unique(rows["at"].astype(np.int64)))
    return KCost(
        steps=steps,
        seconds=seconds,
        request_steps=requests,
        step_s=step_s,
        error=max(1.25 * spread / step_s, _LEAST_SPREAD) / np.sqrt(seconds),
        drafted=float(rows["drafted"].sum() / requests),
        accepted=float(rows["accepted"].sum() / requests),
    )


def _median(values: npt.NDArray[Any], weights: npt.NDArray[Any]) -> float:
    """Of `values`, each counted `weights` times."""
    order = np.argsort(values)
    cumulative = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(cumulative, cumulative[-1] / 2)])
