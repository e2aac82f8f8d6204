"""The limits by layer, and what is in force of them: profile, operator, and for the cap alone the controller. Pure.

    layer       what                                        ends
    profile     `[throttle]`                                with another profile
    operator    settings, nested, each over the former one  by itself, or when it is cleared
    controller  the cap, never above the profile's          when the controller lets go, or is off

The operator's layer lies over both others: while an operator has set the cap, or that there is none, the controller's
counts for nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from engine_host.profiles.throttle_table import Throttle as Table
from engine_host.protocol.throttling import AUTO, AutoMode, Former, Limit, LimitName, LimitValue
from engine_host.throttle.limits import Limits
from engine_host.timed_settings import Setting, Settings

CLOSED = (LimitName.PAUSED, LimitName.DRAINING)
"""While one of them is in force nothing is let in."""


@dataclass(frozen=True, slots=True)
class AutoCap:
    """What the controller chose last."""

    cap: int | None = None
    """None: no cap of its own."""
    text: str = ""
    at: float | None = None
    """Unix time."""


@dataclass(frozen=True, slots=True)
class Layers:
    """One moment's settings over one profile's table. `now` is the clock of `Settings`."""

    table: Table
    settings: Mapping[LimitName, Settings[LimitValue]]
    mode: Settings[AutoMode]
    auto: AutoCap = AutoCap()
    mode_moves: int = 0
    """How often the mode in force became another: who looks now and then would miss one that came and went."""

    @staticmethod
    def of(table: Table) -> Layers:
        """Nobody has set anything."""
        settings = {name: Settings(Setting(profile_value(table, name))) for name in LimitName}
        return Layers(table, settings, Settings(Setting(AutoMode(table.auto.mode))))

    def in_force(self, name: LimitName, now: float) -> Setting[LimitValue]:
        setting = self.settings[name].in_force(now)
        auto = self.auto
        if name is not LimitName.MAX_INFLIGHT or setting.who is not None or auto.cap is None:
            return setting
        bound = self.table.max_inflight
        if self.mode.in_force(now).value is not AutoMode.ON or (bound is not None and auto.cap >= bound):
            return setting
        return Setting(auto.cap, AUTO, auto.text, auto.at)

    def with_mode(self, mode: Settings[AutoMode], now: float) -> Layers:
        """A cap that was only thought of, or that is to hold no longer, does not come into force with another mode."""
        after = dataclasses.replace(self, mode=mode)
        return after if mode.in_force(now).value is self.mode.in_force(now).value else after.in_another_mode()

    def in_another_mode(self) -> Layers:
        """The same after the mode in force has become another."""
        return dataclasses.replace(self, auto=AutoCap(), mode_moves=self.mode_moves + 1)

    def values(self, names: Iterable[LimitName], now: float) -> dict[LimitName, LimitValue]:
        return {name: self.in_force(name, now).value for name in names}

    def set_by_hand(self, now: float) -> dict[LimitName, Setting[LimitValue]]:
        """What operators have set, as far as it is in force."""
        found = {name: settings.in_force(now) for name, settings in self.settings.items()}
        return {name: one for name, one in found.items() if one.who is not None}

    def next_end(self) -> float | None:
        """When something may change by itself."""
        ends = [self.mode.next_end(), *(one.next_end() for one in self.settings.values())]
        return min((end for end in ends if end is not None), default=None)

    def limits(self, now: float) -> Limits:
        ends = sorted({end for one in self.settings.values() for end in one.ends() if end > now})
        later = tuple((end - now, Limits(**self._named(end))) for end in ends)
        limits = Limits(**self._named(now), later=later)
        if not limits.is_closed:
            return limits
        opens_in_s = next((in_s for in_s, then in later if not then.is_closed), None)
        return dataclasses.replace(limits, opens_in_s=opens_in_s)

    def _named(self, now: float) -> dict[str, Any]:
        return {str(name): value for name, value in self.values(LimitName, now).items()}

    def sheet(self, now: float) -> dict[str, Limit]:
        return {str(name): self._limit(name, now) for name in LimitName}

    def _limit(self, name: LimitName, now: float) -> Limit:
        one = self.in_force(name, now)
        return Limit(
            value=one.value,
            profile=profile_value(self.table, name),
            who=one.who,
            reason=one.reason,
            since=one.since,
            until=one.until,
            then=former(self.settings[name].next(now)),
        )


def former(setting: Setting[Any] | None) -> Former | None:
    if setting is None:
        return None
    return Former(value=setting.value, who=setting.who, reason=setting.reason, until=setting.until)


def profile_value(table: Table, name: LimitName) -> LimitValue:
    """What a limit is while nobody has set it."""
    if name in CLOSED:
        return False
    value: LimitValue = getattr(table, name)
    return value
