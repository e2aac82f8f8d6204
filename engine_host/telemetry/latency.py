"""Latency percentiles over sliding windows, in bounded memory.

At 256 streams an engine yields over ten thousand inter-token latencies a second, so samples are not kept: every
second's samples are counted in logarithmic bins (2 % wide, so a percentile is right to 1 %), one row a second, and
each window keeps its running sum of rows. Recording is one list append on the step path; the binning happens once a
second, vectorised.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from engine_host.protocol.snapshot import Percentiles

_LOWEST_S = 1e-5
"""Everything faster lands in the first bin; no clock in the path resolves less."""
_HIGHEST_S = 1e4
"""Everything slower lands in the last bin."""
_GROWTH = 1.02
"""Ratio of a bin's upper to its lower edge."""
_LOG_GROWTH = math.log(_GROWTH)
_BINS = math.ceil(math.log(_HIGHEST_S / _LOWEST_S) / _LOG_GROWTH) + 1

Counts = NDArray[np.int64]


def bin_counts(samples: Sequence[float]) -> Counts:
    """Count samples (seconds) into the bins; shape (`_BINS`,)."""
    values = np.maximum(np.asarray(samples, dtype=np.float64), _LOWEST_S)
    indexes = np.minimum((np.log(values / _LOWEST_S) / _LOG_GROWTH).astype(np.int64), _BINS - 1)
    return np.bincount(indexes, minlength=_BINS)


def percentiles(counts: Counts) -> Percentiles:
    """Nearest-rank percentiles of binned samples, each the geometric middle of its bin."""
    cumulative = np.cumsum(counts)
    n = int(cumulative[-1])
    if n == 0:
        return Percentiles()
    ranks = [max(1, math.ceil(n * q)) for q in (0.50, 0.95, 0.99)]
    p50, p95, p99 = (
        _LOWEST_S * _GROWTH ** (float(index) + 0.5) for index in np.searchsorted(cumulative, ranks, side="left")
    )
    return Percentiles(n=n, p50_s=p50, p95_s=p95, p99_s=p99)


class LatencyWindows:
    """One latency over several windows. `windows`: name -> whole seconds."""

    def __init__(self, windows: Mapping[str, float]) -> None:
        self._seconds = {name: int(span) for name, span in windows.items()}
        self._rows = np.zeros((max(self._seconds.values()), _BINS), dtype=np.int32)
        self._sums = {name: np.zeros(_BINS, dtype=np.int64) for name in windows}
        self._pending: list[Sequence[float]] = []
        self._second = 0

    def record(self, samples: Sequence[float]) -> None:
        """Keep a step's samples, in seconds, for the current second. Does not copy: the caller gives them away."""
        self._pending.append(samples)

    def advance(self, second: int) -> None:
        """Close the current second and make `second` the current one; idle seconds in between count as empty."""
        self._fold()
        for current in range(self._second + 1, min(second, self._second + len(self._rows)) + 1):
            for name, span in self._seconds.items():
                # The row that leaves the window [current - span + 1, current].
                self._sums[name] -= self._rows[(current - span) % len(self._rows)]
            self._rows[current % len(self._rows)] = 0
        if second - self._second > len(self._rows):
            self._rows[:] = 0
            for total in self._sums.values():
                total[:] = 0
        self._second = second

    def read(self) -> dict[str, Percentiles]:
        """Percentiles of every window up to now, the running second included."""
        self._fold()
        return {name: percentiles(total) for name, total in self._sums.items()}

    def read_one(self, window: str) -> Percentiles:
        self._fold()
        return percentiles(self._sums[window])

    def _fold(self) -> None:
        if not self._pending:
            return
        counts = bin_counts([sample for samples in self._pending for sample in samples])
        self._pending.clear()
        self._rows[self._second % len(self._rows)] += counts.astype(np.int32)
        for total in self._sums.values():
            total += counts
