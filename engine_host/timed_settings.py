"""What was set on one thing, a dial or a limit: settings that end by themselves, nested, over one that stays.

Pure: the value in force is that of the youngest setting which has not ended. A setting that stays ends all before it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Setting(Generic[V]):
    value: V
    who: str | None = None
    """None: the engine or its profile."""
    reason: str = ""
    since: float | None = None
    """Unix time; None where nobody set it."""
    ends: float | None = None
    """By the clock that `Settings` is asked with; None: it stays."""
    until: float | None = None
    """The same as Unix time, for those who read it."""

    @property
    def spoken_for_s(self) -> float | None:
        """How long it was to hold."""
        return None if self.until is None or self.since is None else self.until - self.since


class Settings(Generic[V]):
    """Of one thing. `now` is any clock that only goes forward, the one that `Setting.ends` is of."""

    def __init__(self, start: Setting[V]) -> None:
        self._stays = start
        self._passing: list[Setting[V]] = []
        """Oldest first, each ending before the one under it: another one could never come back."""

    def in_force(self, now: float) -> Setting[V]:
        return next((one for one in reversed(self._passing) if _holds(one, now)), self._stays)

    @property
    def is_touched(self) -> bool:
        """Somebody has set something of it that may be in force some time."""
        return bool(self._passing) or self._stays.who is not None

    def next(self, now: float) -> Setting[V] | None:
        """The one that comes into force when that of now ends; None: it stays."""
        one = self.in_force(now)
        return None if one.ends is None else self.in_force(one.ends)

    def over(self, now: float) -> Setting[V] | None:
        """The one that was in force until it ended, if it has ended and is not forgotten yet."""
        return self._passing[-1] if self._passing and not _holds(self._passing[-1], now) else None

    def with_(self, setting: Setting[V]) -> Settings[V]:
        """These and a younger one: in force from now on, until it ends."""
        if setting.ends is None:
            return Settings(setting)
        younger = Settings(self._stays)
        outlasting = [one for one in self._passing if one.ends is not None and one.ends > setting.ends]
        younger._passing = [*outlasting, setting]
        return younger

    def values(self) -> list[V]:
        """All that may be in force some time, the one that stays first."""
        return [self._stays.value, *(one.value for one in self._passing)]

    def ends(self) -> list[float]:
        """When the value in force may change by itself, soonest first."""
        return [one.ends for one in reversed(self._passing) if one.ends is not None]

    def next_end(self) -> float | None:
        return self._passing[-1].ends if self._passing else None

    def end(self, now: float) -> Setting[V] | None:
        """Forget what has ended; returns what `over` does."""
        was = self.over(now)
        self._passing = [one for one in self._passing if _holds(one, now)]
        return was

    def moved(self, start: V, fit: Callable[[V], V] = lambda value: value) -> Settings[V]:
        """The same settings over another start; `fit` makes each value one that can be had there."""
        stays = self._stays
        twin = Settings(Setting(start) if stays.who is None else replace(stays, value=fit(stays.value)))
        twin._passing = [replace(one, value=fit(one.value)) for one in self._passing]
        return twin


def _holds(setting: Setting[V], now: float) -> bool:
    return setting.ends is None or now < setting.ends


def span_in_words(seconds: float) -> str:
    """`90 s`, `10 m`, `1 h`, as an operator gives it."""
    seconds = round(seconds, 3)
    for size, unit in ((3600, "h"), (60, "m")):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.3g} s" if seconds < 100 else f"{seconds:.0f} s"
