"""What becomes of settings of dials when another engine serves, or the same one another profile. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from engine_host.engine.dial_words import is_over
from engine_host.live.dial import DialName, DialRange
from engine_host.profiles import Profile
from engine_host.protocol.errors import EXIT_INVALID, OperatorError
from engine_host.protocol.events import Severity
from engine_host.timed_settings import Setting, Settings

Ranges = Mapping[DialName, DialRange]
Note = tuple[str, Severity]
"""What an operator is to be told."""


def is_same(one: Profile | None, other: Profile) -> bool:
    return one is not None and (one.name, one.digest) == (other.name, other.digest)


def start_of(profile: Profile | None, name: DialName, span: DialRange) -> int:
    """Where a dial stands while nobody has set it."""
    return int(profile.dials.get(str(name), span.start)) if profile is not None else span.start


def moved(
    settings: Mapping[DialName, Settings[int]], former: Profile | None, profile: Profile, ranges: Ranges, now: float
) -> tuple[dict[DialName, Settings[int]], list[Note]]:
    """The settings of an engine with `ranges` that serves `profile`: those of `former`, made to fit, where that is the
    same profile, else none."""
    is_kept = is_same(former, profile)
    found: dict[DialName, Settings[int]] = {}
    notes: list[Note] = []
    for name, span in ranges.items():
        start, held = start_of(profile, name, span), settings.get(name)
        if held is not None and is_kept:
            found[name] = held.moved(start, span.nearest)
        else:
            found[name] = Settings(Setting(start))
        value = found[name].in_force(now).value
        if held is not None and is_kept and (ended := held.over(now)) is not None:
            notes.append((f"{name} is {value} in the new engine: {is_over(ended)}", Severity.INFO))
        elif held is not None and (was := held.in_force(now)).who is not None:
            if not is_kept:
                notes.append((f"{name} {was.value} → {value}: {profile.name} begins at its own", Severity.INFO))
            elif value == was.value:
                notes.append((f"{name} is {value} in the new engine too, as {was.who} set it", Severity.INFO))
            else:
                takes = f"the new engine takes {span.low} to {span.high}"
                notes.append((f"{name} {was.value} → {value}: {takes}", Severity.WARNING))
    return found, notes


def refuse_out_of_range(profile: Profile, ranges: Ranges, missing: Mapping[DialName, str]) -> None:
    """Raises `OperatorError` for the first value of `[dials]` that an engine with `ranges` does not take; `missing`:
    why it lacks a dial, where that is not plain."""
    for key, value in profile.dials.items():
        where, span = f"{profile.origin(f'dials.{key}')}: dials.{key} = {value}", ranges.get(DialName(key))
        if span is None:
            why = missing.get(DialName(key), "this engine has no such dial")
            raise OperatorError(f"{where}: {why}", f"remove dials.{key}", exit_code=EXIT_INVALID)
        if not span.low <= value <= span.high:
            raise OperatorError(f"{where}: this engine takes {span.low} to {span.high}", f"mend dials.{key}")
