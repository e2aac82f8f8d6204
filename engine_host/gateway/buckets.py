"""A rate with a burst, as a bucket of tokens that fills at the rate and holds the burst."""

from __future__ import annotations

_ROUNDING = 1e-9
"""Of the burst: a wait that was slept through must not be found a rounding error short."""


class Bucket:
    """Full at first. Over any span it lets through at most `burst + rate * span`, and what is owed.

    Whoever costs more than the burst goes when the bucket is full, and is owed: the level falls below zero, and who
    comes next waits until it is paid. All times are seconds of one clock that does not go back.
    """

    def __init__(self, rate: float, burst: float, now: float) -> None:
        self._rate = rate
        self._burst = burst
        self._level = burst
        self._at = now

    def tune(self, rate: float, burst: float, now: float) -> None:
        """Go on with another rate and burst; what is in the bucket stays, as far as it fits."""
        self._level = self._filled(now)
        self._rate, self._burst, self._at = rate, burst, now

    def wait_s(self, cost: float, now: float) -> float:
        """Until `cost` may go; 0: now."""
        return self._until(min(cost, self._burst), now)

    def wait_behind_s(self, cost: float, ahead: float, now: float) -> float:
        """The same for one in front of whom others wait, who cost `ahead` together."""
        return self._until(ahead + min(cost, self._burst), now)

    def take(self, cost: float, now: float) -> None:
        self._level = self._filled(now) - cost
        self._at = now

    def _until(self, wanted: float, now: float) -> float:
        missing = wanted - self._filled(now)
        return missing / self._rate if missing > _ROUNDING * max(1.0, self._burst) else 0.0

    def _filled(self, now: float) -> float:
        return min(self._burst, self._level + self._rate * (now - self._at))


def burst_of(rate: float, burst: int | None) -> float:
    """As it was set, else what `rate` lets through in a second; at least one."""
    return float(burst) if burst is not None else max(1.0, rate)
