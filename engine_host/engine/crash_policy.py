"""When a crashed engine is started again, and when the host gives up.

Three crashes within five minutes end it: a loop would hide the fault and heat the node. A large model can take longer
than that to load, so three failures in a row without an engine that served end it too, however slow they were.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence

CRASH_LIMIT = 3
CRASH_WINDOW_S = 300.0
BACKOFF_S = (1.0, 5.0)
"""Pause before the restart after the first and the second crash; the third gives up."""


class CrashPolicy:
    """Counts crashes; `clock` in monotonic seconds."""

    def __init__(self, backoff_s: Sequence[float] = BACKOFF_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._backoff_s = backoff_s
        self._clock = clock
        self._crashes: deque[float] = deque()
        self._without_service = 0

    @property
    def recent(self) -> int:
        """Crashes that count against the limit."""
        while self._crashes and self._clock() - self._crashes[0] > CRASH_WINDOW_S:
            self._crashes.popleft()
        return max(len(self._crashes), self._without_service)

    @property
    def pause_s(self) -> float | None:
        """Before the next start, after a crash; None: give up."""
        count = self.recent
        return None if count >= CRASH_LIMIT else self._backoff_s[min(count, len(self._backoff_s)) - 1]

    def crashed(self, *, had_served: bool) -> None:
        """Record a crash."""
        self._crashes.append(self._clock())
        self._without_service = 1 if had_served else self._without_service + 1

    def serves(self) -> None:
        """An engine serves: what failed before it failed in a row that has ended."""
        self._without_service = 0

    def forgive(self) -> None:
        """An operator's restart starts the count anew."""
        self._crashes.clear()
        self._without_service = 0
