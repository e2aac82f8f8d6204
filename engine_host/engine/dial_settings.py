"""What was set on one dial: settings that end by themselves, nested, over one that stays.

Pure: the value in force is that of the youngest setting which has not ended. A setting that stays ends all before it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Setting:
    value: int
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


class Settings:
    """Of one dial. `now` is any clock that only goes forward, the one that `Setting.ends` is of."""

    def __init__(self, start: Setting) -> None:
        self._stays = start
        self._passing: list[Setting] = []
        """Oldest first, each ending before the one under it: another one could never come back."""

    def in_force(self, now: float) -> Setting:
        return next((one for one in reversed(self._passing) if _holds(one, now)), self._stays)

    def over(self, now: float) -> Setting | None:
        """The one that was in force until it ended, if it has ended and is not forgotten yet."""
        return self._passing[-1] if self._passing and not _holds(self._passing[-1], now) else None

    def with_(self, setting: Setting) -> Settings:
        """These and a younger one: in force from now on, until it ends."""
        if setting.ends is None:
            return Settings(setting)
        younger = Settings(self._stays)
        outlasting = [one for one in self._passing if one.ends is not None and one.ends > setting.ends]
        younger._passing = [*outlasting, setting]
        return younger

    def next_end(self) -> float | None:
        """When the value in force may change by itself."""
        return self._passing[-1].ends if self._passing else None

    def end(self, now: float) -> Setting | None:
        """Forget what has ended; returns what `over` does."""
        was = self.over(now)
        self._passing = [one for one in self._passing if _holds(one, now)]
        return was

    def moved(self, start: int, low: int, high: int) -> Settings:
        """The same settings on another engine that begins at `start` and takes `low` to `high`."""
        twin = Settings(Setting(start) if self._stays.who is None else _fit(self._stays, low, high))
        twin._passing = [_fit(one, low, high) for one in self._passing]
        return twin


def _holds(setting: Setting, now: float) -> bool:
    return setting.ends is None or now < setting.ends


def _fit(setting: Setting, low: int, high: int) -> Setting:
    return replace(setting, value=min(max(setting.value, low), high))


def span_in_words(seconds: float) -> str:
    """`90 s`, `10 m`, `1 h`, as an operator gives it."""
    seconds = round(seconds, 3)
    for size, unit in ((3600, "h"), (60, "m")):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.3g} s" if seconds < 100 else f"{seconds:.0f} s"
