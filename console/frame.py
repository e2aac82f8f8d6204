"""What every page has around its own lines: the title, the banner, the size, and what becomes of it all when it is old.

A page is a function from (live state, moment, size) to exactly `height` lines of exactly `width` cells. While frozen it
shows the state of the freeze as of then, and only the banner speaks of now.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from console import format as fmt
from console import panels
from console.lines import BLANK, Line, Tone, cells, fit, line
from console.model import State, is_stale
from console.situation import banner, is_without_engine, situation
from console.words import state_word
from engine_host.protocol.snapshot import Snapshot

HEAD = 2
"""Rows of every page's title and banner."""

WAITING = line(("  Waiting for the first values from the host.", Tone.FAINT))


@dataclass(frozen=True, slots=True)
class Moment:
    """Now, by both clocks: monotonic for ages, wall for what is compared with times named on screen."""

    now: float
    wall: float


@dataclass(frozen=True, slots=True)
class Opening:
    """How a page about the engine begins."""

    state: State
    """What is on screen; as `seen`."""
    now: float
    snapshot: Snapshot | None
    """Of a host whose engine runs. None: there is nothing to show of one, and `rows` say so."""
    rows: list[Line]
    """Title, banner, and what the engine is going through."""


def opening(live: State, moment: Moment, width: int, height: int, *, keeps: int, without_engine: str) -> Opening:
    """`keeps`: rows that the page wants for itself below. `without_engine`: what follows from there being none, to end
    the sentence."""
    state, now = seen(live, moment)
    rows = head(state, live, moment, now, width)
    snapshot = state.snapshot
    if snapshot is None:
        return Opening(state, now, None, [*rows, WAITING])
    rows += situation(snapshot, width, max(0, height - keeps))
    if is_without_engine(snapshot):
        return Opening(state, now, None, [*rows, BLANK, line((f"  No engine runs, {without_engine}.", Tone.FAINT))])
    return Opening(state, now, snapshot, rows)


def seen(live: State, moment: Moment) -> tuple[State, float]:
    """The state that is on screen and the monotonic time that it is drawn as of."""
    return (live, moment.now) if live.frozen is None else (live.frozen.state, live.frozen.now)


def head(state: State, live: State, moment: Moment, now: float, width: int) -> list[Line]:
    """The first `HEAD` rows of every page."""
    first = title(state, state.snapshot, now, width) if state.snapshot is not None else BLANK
    return [first, banner(state, live, moment.now, moment.wall)]


def title(state: State, snapshot: Snapshot, now: float, width: int) -> Line:
    word, tone = state_word(snapshot.state)
    if is_stale(state, now):
        word, tone = f"{word} ?", Tone.FAINT
    name = fmt.clean(snapshot.host.name)
    lead = line((name, Tone.STRONG), "  ", (word, tone), "  ")
    return (*lead, *panels.header(snapshot, max(10, width - cells(lead))))


def sized(rows: Iterable[Line], width: int, height: int) -> list[Line]:
    return [fit(row, width) for row in [*rows, *[BLANK] * height][:height]]
