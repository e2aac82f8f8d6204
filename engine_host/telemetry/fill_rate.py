"""When the KV cache will be full at the rate of the last seconds.

The rate is the median of the slopes between all pairs of points (Theil and Sen): a request that ends or a prompt that
comes in at once moves it little, where a line through first and last would follow them.
"""

from __future__ import annotations

from collections import deque
from itertools import combinations
from statistics import median

WINDOW_S = 10.0
_FEWEST = 5
"""Points, one a second, before anything is forecast."""
_LEAST_RISE = 0.01
"""Of the cache over the window: below it a forecast would speak of noise."""
_FARTHEST_S = 3600.0
"""Nobody acts on what is further off, and no rate holds so long."""


class FillRate:
    """Told the usage (0..1) of the fullest engine core about once a second. Times by any clock that goes forward."""

    def __init__(self) -> None:
        self._points: deque[tuple[float, float]] = deque()

    def clear(self) -> None:
        """Another engine: its cache is another one."""
        self._points.clear()

    def add(self, now: float, usage: float | None) -> None:
        if usage is None:
            self._points.clear()
            return
        self._points.append((now, usage))
        while self._points[0][0] < now - WINDOW_S - 0.5:
            self._points.popleft()

    def full_in_s(self, now: float, usage: float | None) -> float | None:
        """None while it does not fill, or not enough is known. `usage` is that of `now`: a forecast stands beside it,
        and blocks that were given back since the last point are room."""
        points = [point for point in self._points if point[0] >= now - WINDOW_S - 0.5]
        if usage is None or len(points) < _FEWEST or min(usage, points[-1][1]) < points[-3][1]:
            return None  # it has begun to fall
        rate = median((u2 - u1) / (t2 - t1) for (t1, u1), (t2, u2) in combinations(points, 2) if t2 > t1)
        if rate * WINDOW_S < _LEAST_RISE:
            return None
        left_s = (1.0 - usage) / rate
        return left_s if left_s <= _FARTHEST_S else None
