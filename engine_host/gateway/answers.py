"""When answers under way will have ended: by how old they are, and by how long the last ones took.

What a `Retry-After` is made of while the gate's pace is not known, as behind a few long answers.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from itertools import accumulate

from engine_host.gateway import come_back
from engine_host.gateway.asked import Asked

_LAST = 64
"""Answers that count: what is asked changes, and so does the engine."""
_FRESH_S = 0.25
"""For how long a forecast stands while nothing begins or ends: in a flood everybody who is refused asks for it."""


class Answers:
    """An answer is anything that takes a place, however it ends. Times are seconds of one clock."""

    def __init__(self) -> None:
        self._running: dict[int, tuple[float, int]] = {}
        """When each began and how many places it has, by identity: an `Asked` cannot be hashed."""
        self._took_s: deque[float] = deque(maxlen=_LAST)
        self._ends: tuple[list[float], list[int]] | None = None
        """When those under way will have ended, soonest first, and how many places are free then; None: to be computed
        anew."""
        self._ends_as_of = 0.0

    def began(self, asked: Asked, now: float) -> None:
        self._running[id(asked)] = (now, asked.choices)
        self._ends = None

    def ended(self, asked: Asked, now: float) -> None:
        began, _ = self._running.pop(id(asked))
        self._took_s.append(now - began)
        self._ends = None

    def free_in_s(self, places: int, cap: int, now: float) -> float | None:
        """Until so many places more have been given back, by those under way and then by others, `cap` at a time.

        None: nothing has ended yet.
        """
        if not self._took_s:
            return None
        if places <= 0:
            return 0.0
        ends_at, free = self._forecast(now)
        if (at := bisect_left(free, places)) < len(free):
            return max(0.0, ends_at[at] - now)
        last_s, freed = (max(0.0, ends_at[-1] - now), free[-1]) if free else (0.0, 0)
        average_s = sum(self._took_s) / len(self._took_s)
        return last_s + (places - freed) * average_s / max(1, cap)

    def _forecast(self, now: float) -> tuple[list[float], list[int]]:
        if self._ends is None or now - self._ends_as_of > _FRESH_S:
            took_s = sorted(self._took_s)
            sums = [0.0, *accumulate(took_s)]
            ends = sorted((now + _left_s(took_s, sums, now - at), choices) for at, choices in self._running.values())
            self._ends = [at for at, _ in ends], list(accumulate(choices for _, choices in ends))
            self._ends_as_of = now
        return self._ends


def _left_s(took_s: list[float], sums: list[float], age_s: float) -> float:
    """What those that took longer had left on average at that age; where none did, nobody knows, and it may be long.

    `took_s` is sorted, `sums` are of its beginnings.
    """
    shorter = bisect_right(took_s, age_s)
    longer = len(took_s) - shorter
    if not longer:
        return come_back.left_s(took_s[-1], age_s, come_back.MOST_UNKNOWN_S)
    return (sums[-1] - sums[shorter]) / longer - age_s
