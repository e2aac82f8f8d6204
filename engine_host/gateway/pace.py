"""How fast the gate lets requests in while more want in than may: what a `Retry-After` can honestly be made of."""

from __future__ import annotations

from collections import deque

_LAST = 64
"""Admissions that count: load changes, and so does how long answers take."""


class Pace:
    """Only admissions for which others had to wait or were refused count: others came when there was room, and tell how
    fast requests come, not how fast they can go in. Times are seconds of one clock."""

    def __init__(self) -> None:
        self._began: float | None = None
        """When there was first no room; None: there is."""
        self._is_pressed = False
        """Somebody found no room since the last admission."""
        self._admitted: deque[float] = deque(maxlen=_LAST)

    def found_no_room(self, now: float) -> None:
        self._is_pressed = True
        if self._began is None:
            self._began = now

    def admitted(self, now: float, has_waited: bool) -> None:
        if not has_waited and not self._is_pressed:
            self._began = None
            self._admitted.clear()
            return
        self._is_pressed = False
        if len(self._admitted) == _LAST:
            self._began = self._admitted[0]
        self._admitted.append(now)

    def begin_anew(self, now: float, is_pressed: bool) -> None:
        """Nobody could go in until now, which tells nothing of how fast they go; `is_pressed`: some wait still."""
        self._admitted.clear()
        self._is_pressed = is_pressed
        self._began = now if is_pressed else None

    def per_s(self, now: float) -> float | None:
        """It falls while nobody is admitted. None: nobody has been, since there was no room."""
        if self._began is None or not self._admitted or now <= self._began:
            return None
        return len(self._admitted) / (now - self._began)
