"""What came of moving a dial: the tokens per second of the ten seconds before it against those of the ten after it.

Said only where it can be: the same ten seconds long, no other dial moved meanwhile, and the load like before, since
with other load another rate is nobody's fault. Ten seconds of a real load vary by themselves, so less than a tenth
counts as no difference.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from console.model import DialMove, Series, State

RATE = "throughput.generation_tokens_per_s"
RATE_WINDOW_S = 10.0
"""Over which the host gives it: its value ten seconds after the change is all of after the change."""

SETTLES_S = 1.0
"""The change is applied, and seen, at some moment of a second."""

FALL = 0.10
SIMILAR = 0.20
"""Shares by which the rate has to differ to be told, and by which the load may."""

FAR = 1e9
"""Steps: beyond any series, and still a number to count with."""

MAX_ACTIVE_SEQS = "max_active_seqs"


class Effect(StrEnum):
    PENDING = "pending"
    SLOWER = "slower"
    FASTER = "faster"
    SAME = "same"
    OTHER_LOAD = "other load"
    OTHER_DIAL = "other dial"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Comparison:
    move: DialMove
    effect: Effect
    before: float | None = None
    """Tokens per second."""
    after: float | None = None
    load_before: float | None = None
    """Requests: those that run; of the dial that limits just these, those that wait as well."""
    load_after: float | None = None
    left_s: float = 0.0
    """Until it can be told."""

    @property
    def change(self) -> float | None:
        """Share by which the rate has risen (above 0) or fallen."""
        if self.before is None or self.after is None or self.before <= 0:
            return None
        return self.after / self.before - 1


def last_move(state: State) -> DialMove | None:
    """The newest one that still stands: the dial is where it was moved to."""
    if state.snapshot is None or not state.dial_moves:
        return None
    move = state.dial_moves[-1]
    dial = state.snapshot.dials.get(move.dial)
    return move if dial is not None and dial.value == move.after else None


def comparison(state: State) -> Comparison | None:
    """Of the newest move; None without one, and once the figures before it are no longer kept."""
    move = last_move(state)
    rates = state.series.get(RATE)
    if move is None or rates is None:
        return None
    ready_at = move.at + RATE_WINDOW_S + SETTLES_S
    if any(other is not move and move.at - RATE_WINDOW_S < other.at for other in state.dial_moves):
        return Comparison(move, Effect.OTHER_DIAL)
    if rates.end_at < ready_at:
        return Comparison(move, Effect.PENDING, left_s=ready_at - rates.end_at)
    if _index(rates, move.at) < 0:
        return None
    load_before = _load(state, move.dial, move.at - RATE_WINDOW_S, move.at)
    load_after = _load(state, move.dial, move.at + SETTLES_S, ready_at)
    before, after = value_at(rates, move.at), value_at(rates, ready_at)
    found = Comparison(move, Effect.UNKNOWN, before, after, load_before, load_after)
    return replace(found, effect=_effect(found))


def _effect(found: Comparison) -> Effect:
    change, before, after = found.change, found.load_before, found.load_after
    if change is None or before is None or after is None:
        return Effect.UNKNOWN
    if min(before, after) < 1 or abs(after / before - 1) > SIMILAR:
        return Effect.OTHER_LOAD
    if abs(change) <= FALL:
        return Effect.SAME
    return Effect.SLOWER if change < 0 else Effect.FASTER


def _load(state: State, dial: str, begin: float, end: float) -> float | None:
    names = ["queue.running", "queue.waiting"] if dial == MAX_ACTIVE_SEQS else ["queue.running"]
    means = [mean(state.series.get(name), begin, end) for name in names]
    known = [value for value in means if value is not None]
    return sum(known) if len(known) == len(means) else None


def value_at(series: Series, at: float) -> float | None:
    """The last one taken until then."""
    index = _index(series, at)
    return series.values[index] if 0 <= index < len(series.values) else None


def mean(series: Series | None, begin: float, end: float) -> float | None:
    """Of what is known after `begin` and until `end`."""
    if series is None:
        return None
    values: Sequence[float | None] = series.values[max(0, _index(series, begin) + 1) : max(0, _index(series, end) + 1)]
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _index(series: Series, at: float) -> int:
    """Of the last value taken until `at`; below 0 when all were taken later."""
    steps_back = min(FAR, max(0.0, (series.end_at - at) / series.step_s))
    return len(series.values) - 1 - math.ceil(steps_back)
