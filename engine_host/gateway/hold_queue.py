"""Who waits at the gate, who of them is next, and who leaves when there are too many.

The higher class goes first, and within a class who came first. Too many: the youngest of the lowest class leaves. Both
alone would starve a class under a flood of higher ones, so a class that has asked for a place for `patience_s` and had
none comes before all others, once: the next place is its oldest's, and that one is not pushed out either. Asking counts
also when it was refused, since a low class that always finds the queue full would otherwise never come to wait.

What has not asked has not starved: a class that was away for `patience_s`, nobody of it waiting, goes ahead of others
only after it has asked for as long again. One that asks at least so often therefore has a place within twice the
patience, which is the hold deadline. Its right to a seat lasts longer, for a client that is told to come back and does:
it harms nobody who goes in, and without it a class that asks rarely would be refused each time.

Everything is O(1) in the number that wait: ten thousand clients may hang up at once.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, Protocol, TypeVar


class Waits(Protocol):
    """Compared by identity."""

    @property
    def rank(self) -> int:
        """Of its class; 0 is the lowest."""

    @property
    def since(self) -> float: ...


W = TypeVar("W", bound=Waits)


_SEAT_LASTS = 4
"""Patiences without a question, which are two hold deadlines: who is refused is told to come back after one at most,
where nothing better is known."""


class _Class(Generic[W]):
    def __init__(self) -> None:
        self.waiting: OrderedDict[W, None] = OrderedDict()
        self.turn_since: float | None = None
        """Since when it has asked, time and again, and was not admitted; None: it does not want for anything."""
        self.seat_since: float | None = None
        """The same, also of a class that asks rarely."""
        self.asked_at = 0.0
        """When one of it was last there."""

    def asks(self, patience_s: float, now: float) -> None:
        away_s = 0.0 if self.waiting else now - self.asked_at
        if self.turn_since is None or away_s > patience_s:
            self.turn_since = now
        if self.seat_since is None or away_s > _SEAT_LASTS * patience_s:
            self.seat_since = now
        self.asked_at = now

    def begin_to_want(self, since: float | None) -> None:
        self.turn_since = self.seat_since = since

    def is_first(self, patience_s: float, now: float) -> bool:
        """The next place is its, whoever else waits."""
        return self.turn_since is not None and now - self.turn_since >= patience_s

    def has_seat(self, patience_s: float, now: float) -> bool:
        """One of it may wait, however full the queue is."""
        return self.seat_since is not None and now - self.seat_since >= patience_s


class HoldQueue(Generic[W]):
    """`classes`: how many there are."""

    def __init__(self, classes: int) -> None:
        self._classes: list[_Class[W]] = [_Class() for _ in range(classes)]
        self._by_age: OrderedDict[W, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_age)

    def held(self, rank: int) -> int:
        """How many of one class wait."""
        return len(self._classes[rank].waiting)

    def add(self, waiter: W, patience_s: float) -> None:
        """`waiter` asks for a place and waits; never older than those who wait already."""
        self.wants(waiter.rank, patience_s, waiter.since)
        self._classes[waiter.rank].waiting[waiter] = None
        self._by_age[waiter] = None

    def wants(self, rank: int, patience_s: float, now: float) -> None:
        """One of that class asks for a place."""
        self._classes[rank].asks(patience_s, now)

    def remove(self, waiter: W, now: float) -> bool:
        """Whether it was waiting."""
        if waiter not in self._by_age:
            return False
        own = self._classes[waiter.rank]
        own.asked_at, waiting = now, own.waiting
        del self._by_age[waiter]
        del waiting[waiter]
        for empty in (waiting, self._by_age):
            if not empty:
                empty.clear()  # a table that was once large stays so otherwise
        return True

    def admitted(self, rank: int, now: float) -> None:
        """One of that class got a place, whether it waited or not."""
        own = self._classes[rank]
        own.begin_to_want(now if own.waiting else None)

    def begin_anew(self, now: float) -> None:
        """Nobody could have a place until now, so no class has starved for others."""
        for one in self._classes:
            one.begin_to_want(None if one.turn_since is None else now)

    def oldest(self) -> W | None:
        return next(iter(self._by_age), None)

    def next(self, patience_s: float, now: float) -> W | None:
        """Whose turn it is."""
        chosen: _Class[W] | None = None
        for one in self._classes:  # the highest class is the last
            if not one.waiting:
                continue
            starved_before = chosen is not None and chosen.is_first(patience_s, now)
            if not starved_before or (one.is_first(patience_s, now) and _earlier(one, chosen)):
                chosen = one
        return None if chosen is None else next(iter(chosen.waiting))

    def least(self, patience_s: float, now: float) -> W | None:
        """Who leaves when one has to."""
        for one in self._classes:
            if one.waiting and not (len(one.waiting) == 1 and one.has_seat(patience_s, now)):
                return next(reversed(one.waiting))
        return next((next(reversed(one.waiting)) for one in self._classes if one.waiting), None)

    def has_lesser(self, rank: int, patience_s: float, now: float) -> bool:
        """Whether `least` would be another than one of that class that comes now."""
        own = self._classes[rank]
        if any(
            one.waiting and not (len(one.waiting) == 1 and one.has_seat(patience_s, now)) for one in self._below(own)
        ):
            return True
        return not own.waiting and own.has_seat(patience_s, now) and len(self) > 0

    def _below(self, own: _Class[W]) -> list[_Class[W]]:
        return self._classes[: self._classes.index(own)]

    def all(self) -> list[W]:
        """Who came first, first."""
        return list(self._by_age)


def _earlier(one: _Class[W], other: _Class[W] | None) -> bool:
    """Of two starving classes; the higher one, `one`, when both have starved equally long."""
    assert one.turn_since is not None
    return other is None or other.turn_since is None or one.turn_since <= other.turn_since
