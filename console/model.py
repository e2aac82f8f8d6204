"""What the console knows about one host, and how each message changes it.

`State` is immutable and `reduce` is pure: everything on screen is a function of (state, now), so any screen can be
reproduced in a test from a list of messages. Two clocks are kept apart: `now` and `received_at` are this machine's
monotonic seconds; `Snapshot.at` and `Event.at` are the host's wall clock and are never subtracted from ours.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from engine_host.protocol.events import Event
from engine_host.protocol.methods import ALLOWED, Hello, History, Risk
from engine_host.protocol.snapshot import Snapshot

SERIES = (
    "kv.usage",
    "queue.running",
    "queue.waiting",
    "throughput.generation_tokens_per_s",
    "throughput.prompt_tokens_per_s",
    "speculation.acceptance_rate",
)
"""Dotted snapshot keys the overview draws over time."""

SPAN_S = 300.0
"""History kept here: what the host can give back after a reconnect."""

EVENTS_KEPT = 1000
"""Events held for the events screen; at about 500 bytes each this is half a megabyte."""

DIAL_MOVES_KEPT = 16
"""More than anybody makes within the five minutes that figures before and after them are kept."""

STALE_AFTER_S = 3.5
"""Three missed snapshots at one a second: late enough to ride out one hiccup of a bad link."""


class Link(StrEnum):
    CONNECTING = "connecting"
    UP = "up"
    DOWN = "down"


@dataclass(frozen=True, slots=True)
class Series:
    """Values one step apart, oldest first, the last one taken at `end_at` by the host's clock."""

    end_at: float
    step_s: float
    values: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class DialMove:
    """A dial of one engine that stood otherwise in the snapshot before: whoever moved it, or its time was over."""

    dial: str
    before: int
    after: int
    at: float
    """By the host's clock."""
    who: str | None


@dataclass(frozen=True, slots=True)
class State:
    target: str
    link: Link = Link.CONNECTING
    link_since: float = 0.0
    """Monotonic: when the connection came up or was lost."""
    link_reason: str = ""
    """Why there is no connection, in the words of the last failure."""
    retry_at: float | None = None
    hello: Hello | None = None
    snapshot: Snapshot | None = None
    received_at: float = 0.0
    """Monotonic, of `snapshot`."""
    series: dict[str, Series] = field(default_factory=dict)
    events: tuple[Event, ...] = ()
    """Oldest first."""
    events_missed: int = 0
    """Events the host no longer had when this console came back."""
    dial_moves: tuple[DialMove, ...] = ()
    """Oldest first, as seen from here: what comes of one is compared with what was before it."""
    frozen: Frozen | None = None
    quit_stops_host: bool = False
    """Whoever started this console stops the host when it ends."""


@dataclass(frozen=True, slots=True)
class Frozen:
    """The state held on screen while the live one goes on underneath."""

    state: State
    now: float
    """Monotonic time of the freeze: the held screen is drawn as of then."""
    wall: float
    """Wall clock of the freeze, to be named on screen."""


@dataclass(frozen=True, slots=True)
class Connecting:
    at: float


@dataclass(frozen=True, slots=True)
class Connected:
    hello: Hello
    at: float


@dataclass(frozen=True, slots=True)
class Disconnected:
    reason: str
    at: float
    retry_at: float


@dataclass(frozen=True, slots=True)
class SnapshotArrived:
    snapshot: Snapshot
    at: float


@dataclass(frozen=True, slots=True)
class EventArrived:
    event: Event


@dataclass(frozen=True, slots=True)
class HistoryArrived:
    history: History


@dataclass(frozen=True, slots=True)
class Freeze:
    at: float
    wall: float


@dataclass(frozen=True, slots=True)
class Thaw:
    pass


Message = Connecting | Connected | Disconnected | SnapshotArrived | EventArrived | HistoryArrived | Freeze | Thaw


def reduce(state: State, message: Message) -> State:
    """The state after `message`."""
    match message:
        case Connecting(at):
            # A retry is still the same outage: its age goes on counting from when the connection was lost.
            if state.link is Link.DOWN:
                return replace(state, retry_at=None)
            return replace(state, link=Link.CONNECTING, link_since=at, retry_at=None)
        case Connected(hello, at):
            state = replace(state, link=Link.UP, link_since=at, link_reason="", retry_at=None, hello=hello)
            return state if _is_same_boot(state) else _start_over(state)
        case Disconnected(reason, at, retry_at):
            since = state.link_since if state.link is Link.DOWN else at
            return replace(state, link=Link.DOWN, link_since=since, link_reason=reason, retry_at=retry_at)
        case SnapshotArrived(snapshot, at):
            if state.snapshot is not None and state.snapshot.host.boot_id != snapshot.host.boot_id:
                state = _start_over(state)
            moves = (*state.dial_moves, *_dial_moves(state.snapshot, snapshot))[-DIAL_MOVES_KEPT:]
            series = _extended(state.series, snapshot)
            return replace(state, snapshot=snapshot, received_at=at, series=series, dial_moves=moves)
        case EventArrived(event):
            return _with_event(state, event)
        case HistoryArrived(history):
            return replace(state, series=_from_history(history))
        case Freeze(at, wall):
            return state if state.frozen else replace(state, frozen=Frozen(state, at, wall))
        case Thaw():
            return replace(state, frozen=None)


def data_age_s(state: State, now: float) -> float | None:
    """How old the shown values are: what the host said when it sent them, and the time since they came."""
    if state.snapshot is None:
        return None
    return state.snapshot.age_s + max(0.0, now - state.received_at)


def is_stale(state: State, now: float) -> bool:
    """The values may no longer be true: the connection is gone, or it is up and the numbers are old all the same."""
    age = data_age_s(state, now)
    return age is not None and (state.link is not Link.UP or age > STALE_AFTER_S)


def may(state: State, risk: Risk) -> bool:
    """The host enforces this; the console only refrains from offering what would be refused."""
    return state.hello is not None and risk in ALLOWED[state.hello.role]


def _is_same_boot(state: State) -> bool:
    return state.snapshot is None or state.hello is None or state.snapshot.host.boot_id == state.hello.boot_id


def _start_over(state: State) -> State:
    """Another host process: its sequence numbers and series have nothing to do with the former ones."""
    return replace(state, snapshot=None, series={}, events=(), events_missed=0, dial_moves=())


def _with_event(state: State, event: Event) -> State:
    missed = state.events_missed
    if state.events:
        last = state.events[-1].seq
        if event.seq <= last:
            return state  # replayed after a reconnect
        missed += event.seq - last - 1
    return replace(state, events=(*state.events, event)[-EVENTS_KEPT:], events_missed=missed)


def _dial_moves(before: Snapshot | None, after: Snapshot) -> list[DialMove]:
    """Of the same engine: another one has dials of its own."""
    if before is None or before.engine.generation != after.engine.generation:
        return []
    moves = []
    for name, dial in after.dials.items():
        former = before.dials.get(name)
        if former is not None and former.value != dial.value:
            told = dial.since if dial.since is not None and before.at <= dial.since <= after.at else after.at
            moves.append(DialMove(name, former.value, dial.value, told, dial.who))
    return moves


def _from_history(history: History) -> dict[str, Series]:
    return {
        name: Series(history.end_at, history.step_s, tuple(values))
        for name, values in history.series.items()
        if history.step_s > 0
    }


def _extended(series: dict[str, Series], snapshot: Snapshot) -> dict[str, Series]:
    known = {name: series.get(name) or Series(snapshot.at - 1.0, 1.0, ()) for name in SERIES}
    return {name: _appended(known[name], snapshot.at, value_at(snapshot, name)) for name in SERIES}


def _appended(series: Series, at: float, value: float | None) -> Series:
    steps = round((at - series.end_at) / series.step_s)
    if steps <= 0:
        return series
    kept = int(SPAN_S / series.step_s)
    # A gap in the stream is unknown time, not a flat line between its ends.
    gap = (None,) * min(steps - 1, kept)
    values = (*series.values, *gap, value)[-kept:]
    return Series(series.end_at + steps * series.step_s, series.step_s, values)


def value_at(snapshot: Snapshot, dotted: str) -> float | None:
    found: Any = snapshot
    for part in dotted.split("."):
        found = getattr(found, part)
    return None if found is None else float(found)
