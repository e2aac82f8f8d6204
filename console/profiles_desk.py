"""What the profiles screen holds besides the host's state: the list, the place in it, what was read, what came of it.

Immutable, changed only by the functions here, so that every step of a switch can be replayed in a test. A switch
under way is not kept here: the snapshot has it, for whoever started it and for everybody else alike.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from console.model import Link, State
from engine_host.protocol.profiles import ProfileDiff, ProfileList, ProfileSummary, Tier
from engine_host.protocol.switching import SwitchForecast, SwitchProgress, SwitchResult


class View(StrEnum):
    LIST = "list"
    DIFF = "diff"
    FORECAST = "forecast"
    SWITCH = "switch"
    """The switch under way, or the last one."""


class Wanted(StrEnum):
    """What has to be asked of the host after a look at its state."""

    LIST = "list"
    STATUS = "status"
    DIFF = "diff"


@dataclass(frozen=True, slots=True)
class Told:
    """A dry run as the host answered it."""

    forecast: SwitchForecast
    at: float
    """Monotonic."""
    state_version: int | None
    """Of the host's state that it was made for."""


@dataclass(frozen=True, slots=True)
class Desk:
    view: View = View.LIST
    profiles: ProfileList | None = None
    chosen: str = ""
    """Name of the profile the cursor is on."""
    top: int = 0
    """First row shown of a view that is longer than the screen."""
    diff: ProfileDiff | None = None
    told: Told | None = None
    """The dry run of the chosen profile."""
    asked: str = ""
    """The profile that this console asked to switch to, until the host answers."""
    last: SwitchResult | None = None
    failure: str = ""
    """What became, in words, of the last thing asked, when it was not what was asked for."""
    was_switching: bool = False
    """A switch was under way at the last look."""
    attached: tuple[str, float] | None = None
    """Host process and connection that the list was read from."""
    runs: tuple[str, str] | None = None
    """Name and digest of what the host runs, which a comparison is made with."""
    state_version: int | None = None
    """Of the host's state at the last look."""
    asked_at: float = 0.0
    """Monotonic: when the dry run that is waited for was asked for."""


def chosen(desk: Desk) -> ProfileSummary | None:
    found = [p for p in desk.profiles.profiles if p.name == desk.chosen] if desk.profiles is not None else []
    return found[0] if found else None


def under_way(state: State) -> SwitchProgress | None:
    return state.snapshot.engine.switch if state.snapshot is not None else None


def place(desk: Desk) -> str:
    """As the action table names it: what can be done here."""
    match desk.view:
        case View.LIST:
            return "profiles" if desk.profiles is not None and desk.profiles.profiles else "profiles.none"
        case View.DIFF:
            return "profiles.diff" if desk.diff is not None and desk.diff.changes else "profiles.same"
        case View.FORECAST:
            told = desk.told.forecast if desk.told is not None else None
            if told is None and not desk.failure:
                return "profiles.waiting"
            if is_outdated(desk):
                return "profiles.outdated"
            can = told is not None and told.ok and told.tier is not Tier.NONE
            return "profiles.forecast" if can else "profiles.refused"
        case View.SWITCH:
            return "profiles.switch"


def is_outdated(desk: Desk) -> bool:
    """The host's state is no longer the one that the dry run was made for: it would refuse the switch."""
    return desk.told is not None and desk.told.state_version != desk.state_version


def followed(desk: Desk, state: State) -> tuple[Desk, list[Wanted]]:
    """The desk after a look at the host's state, and what to ask the host.

    By level and not by edge: whatever was missed while another screen or a dialog was up is caught up with here.
    """
    wanted: list[Wanted] = []
    if state.link is Link.UP and state.hello is not None:
        attached = (state.hello.boot_id, state.link_since)
        if attached != desk.attached:
            desk = replace(desk, attached=attached)
            wanted += [Wanted.LIST, Wanted.STATUS]
    if state.snapshot is not None:
        desk = replace(desk, state_version=state.snapshot.state_version)
        runs = (state.snapshot.profile.name, state.snapshot.profile.digest)
        if runs != desk.runs:
            is_read = desk.diff is not None
            desk = replace(desk, runs=runs, diff=None)
            wanted += [Wanted.DIFF] if is_read and desk.view is View.DIFF else []
    is_switching = under_way(state) is not None
    if is_switching and not desk.was_switching:
        # Everything else on this screen is off until it has ended, so it is what there is to see.
        desk = replace(desk, view=View.SWITCH, top=0, was_switching=True, last=None)
    elif desk.was_switching and not is_switching and state.snapshot is not None:
        desk = replace(desk, was_switching=False)
        wanted += [w for w in (Wanted.STATUS, Wanted.LIST) if w not in wanted]
    return desk, wanted


def listed(desk: Desk, profiles: ProfileList, running: str | None) -> Desk:
    """The list was read; the cursor stays where it is, at first on what runs."""
    names = [p.name for p in profiles.profiles]
    wanted = [name for name in (desk.chosen, running) if name in names] + names
    # Another view's failure is not ended by a list that was read behind it.
    failure = "" if desk.view is View.LIST else desk.failure
    return replace(desk, profiles=profiles, chosen=wanted[0] if wanted else "", failure=failure)


def moved(desk: Desk, steps: int, longest: int) -> Desk:
    """`longest`: how far the view can be scrolled."""
    if desk.view is not View.LIST:
        return replace(desk, top=min(longest, max(0, desk.top + steps)))
    names = [p.name for p in desk.profiles.profiles] if desk.profiles is not None else []
    if not names:
        return desk
    at = names.index(desk.chosen) if desk.chosen in names else 0
    return replace(desk, chosen=names[min(len(names) - 1, max(0, at + steps))])


def comparing(desk: Desk) -> Desk:
    return replace(_at(desk, View.DIFF), diff=None)


def forecasting(desk: Desk, now: float) -> Desk:
    # Asked for from the list: the comparison that was read before is another profile's.
    diff = None if desk.view is View.LIST else desk.diff
    return replace(_at(desk, View.FORECAST), told=None, diff=diff, asked_at=now)


def forecasted(forecast: SwitchForecast, state: State, now: float) -> Told:
    version = state.snapshot.state_version if state.snapshot is not None else None
    return Told(forecast, now, version)


def asking(desk: Desk, told: Told) -> Desk:
    """The switch that was told of is asked for."""
    return replace(_at(desk, View.SWITCH), asked=told.forecast.to_profile, told=told, last=None)


def ended(desk: Desk, outcome: SwitchResult | str) -> Desk:
    """The host answered the switch, or in words why it did not."""
    if isinstance(outcome, str):
        return replace(desk, asked="", failure=outcome)
    return replace(desk, asked="", failure="", last=outcome, top=0)


def told_last(desk: Desk, last: SwitchResult | None) -> Desk:
    """What the host says of its last switch. The answer to our own call comes by another way and may be newer."""
    if desk.asked or last is None or (desk.last is not None and desk.last.at > last.at):
        return desk
    return replace(desk, last=last)


def watching(desk: Desk) -> Desk:
    return _at(desk, View.SWITCH)


def back(desk: Desk) -> Desk:
    return _at(desk, View.DIFF if desk.view is View.FORECAST and desk.diff is not None else View.LIST)


def _at(desk: Desk, view: View) -> Desk:
    return replace(desk, view=view, top=0, failure="")
