"""What becomes of the limits when another profile serves, or another engine; and what an operator is told of it. Pure.

What operators have set stays: a limit that vanished with a switch would be missed under load, and one that was
forgotten is told again.
"""

from __future__ import annotations

import dataclasses
import time

from engine_host.profiles.throttle_table import Throttle as Table
from engine_host.protocol.events import Severity
from engine_host.protocol.throttling import AutoMode, LimitName
from engine_host.throttle import limit_words as words
from engine_host.throttle.layers import Layers, profile_value
from engine_host.timed_settings import Setting, Settings

Note = tuple[str, str, Severity]
"""Kind of event, text, severity."""


def moved(layers: Layers, table: Table, now: float) -> Layers:
    """The same settings over another profile's table."""
    settings = {name: one.moved(profile_value(table, name)) for name, one in layers.settings.items()}
    if not set(settings[LimitName.MIN_CLASS].values()) <= {None, *table.classes}:
        settings[LimitName.MIN_CLASS] = Settings(Setting(table.min_class))
    mode = layers.mode.moved(AutoMode(table.auto.mode))
    return dataclasses.replace(layers, table=table, settings=settings).with_mode(mode, now)


def notes(before: Layers, after: Layers, name: str, now: float, *, is_another: bool) -> list[Note]:
    """`before` became `after` when the profile `name` came to serve; `is_another`: not the one that served before."""
    found: list[Note] = []
    by_profile = []
    for limit in LimitName:
        was, is_ = before.in_force(limit, now), after.in_force(limit, now)
        if was.who is not None and is_.who is None:
            text = f"{limit} {words.in_words(was.value)} of {was.who} has ended: {_why_ended(after, name)}"
            found.append(("throttle.ended", text, Severity.WARNING))
        elif was.value != is_.value:
            by_profile.append(words.move(limit, was, is_.value))
    modes = before.mode.in_force(now).value, after.mode.in_force(now).value
    if modes[0] is not modes[1]:
        by_profile.append(f"auto {modes[0]} → {modes[1]}")
    if by_profile:
        found.append(("throttle.profile", f"{', '.join(by_profile)}: as {name} says", Severity.INFO))
    if by_hand := standing(after, now):
        where = f"under {name} too" if is_another else "in the new engine too"
        found.append(("throttle.kept", f"still set by hand {where}: {'; '.join(by_hand)}", Severity.INFO))
    return found


def ending(before: Layers, after: Layers, name: str, now: float) -> list[str]:
    """What operators have set that ends when `before` becomes `after`, a phrase each: it cannot be there."""
    ended = before.set_by_hand(now).keys() - after.set_by_hand(now).keys()
    return [f"{_set(before, limit, now)}: {_why_ended(after, name)}" for limit in LimitName if limit in ended]


def _why_ended(after: Layers, name: str) -> str:
    """Only the name of a class is none everywhere."""
    return f"{name} has the classes {', '.join(after.table.classes)}"


def standing(layers: Layers, now: float) -> list[str]:
    """What operators have set, a phrase each."""
    told = [_set(layers, name, now) for name in layers.set_by_hand(now)]
    mode = layers.mode.in_force(now)
    if mode.who is not None:
        told.append(words.whose(f"auto {mode.value}", mode.who, _clock(mode.until)))
    return told


def _set(layers: Layers, name: LimitName, now: float) -> str:
    one = layers.settings[name].in_force(now)
    return words.standing(name, one, _clock(one.until), profile_value(layers.table, name))


def _clock(at: float | None) -> str | None:
    return time.strftime("%H:%M:%S", time.localtime(at)) if at is not None else None
