"""Who has a place, who waits for one: cap and rates, the hold queue, the pace, and one timer for all of them.

An admission is one step on the event loop, without an `await` in it. Whoever waits has a future that says how it ended.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

from engine_host.gateway.asked import Asked
from engine_host.gateway.capacity import Capacity
from engine_host.gateway.gate_tally import GateTally
from engine_host.gateway.held_request import HeldBytes, HeldRequest
from engine_host.gateway.hold_queue import HoldQueue
from engine_host.gateway.pace import Pace
from engine_host.gateway.passage import Passage
from engine_host.gateway.refusals import Refusal, come_again
from engine_host.gateway.unavailable import Unavailable
from engine_host.throttle.limits import Limits

HELD_BYTES = 512 << 20
"""Of the bodies of all that wait: what waits must not fill the machine's memory, however long its prompts are."""
_SOONEST_S = 0.001
"""Of timers: an event loop's clock may be a millisecond behind."""

_SHED = "others have taken this request's place in the queue"

Turned = Refusal | Unavailable


def reason_of(why: Turned) -> str:
    """As it is counted."""
    return why.reason if isinstance(why, Refusal) else why.state


Outright = Callable[[Asked], Turned | None]
"""Why one that waits may not do so any more; None: it may."""


def _full(waiting: int) -> str:
    return f"{waiting} wait already" if waiting else "none may wait"


class _Waiter:
    """Hashed by identity."""

    __slots__ = ("asked", "decided", "since")

    def __init__(self, asked: Asked, since: float) -> None:
        self.asked = asked
        self.since = since
        self.decided: asyncio.Future[Turned | None] = asyncio.get_running_loop().create_future()
        """None: a place was taken for it."""

    @property
    def rank(self) -> int:
        return self.asked.class_rank


class Line:
    """`classes`: how many there are. `clock` goes on in seconds."""

    def __init__(self, classes: int, tally: GateTally, clock: Callable[[], float], held_bytes: int) -> None:
        self.capacity = Capacity()
        self.held_bytes = HeldBytes(held_bytes)
        self._tally = tally
        self._clock = clock
        self._queue: HoldQueue[_Waiter] = HoldQueue(classes)
        self._pace = Pace()
        self._wake: asyncio.TimerHandle | None = None
        self._wakes_at = 0.0

    def __len__(self) -> int:
        """How many wait."""
        return len(self._queue)

    def held(self, rank: int) -> int:
        """How many of one class wait."""
        return self._queue.held(rank)

    @property
    def oldest_s(self) -> float | None:
        """How long the first of them has waited."""
        oldest = self._queue.oldest()
        return None if oldest is None else self._clock() - oldest.since

    def apply(self, limits: Limits, outright: Outright) -> None:
        """Let in who now may; turn away who may not wait any more."""
        now = self._clock()
        is_opened = self.capacity.limits.is_closed and not limits.is_closed
        self.capacity.apply(limits, now)
        if is_opened:
            self._queue.begin_anew(now)
        self.turn_away(outright)
        self._look_after(now)
        if is_opened:  # behind those who found room at once
            self._pace.begin_anew(now, is_pressed=len(self._queue) > 0)
        while len(self._queue) > limits.hold_queue and (least := self._queue.least(self._patience_s, now)):
            self._refuse(least, "shed", _SHED, now)

    def set_classes(self, classes: int, as_classed_now: Callable[[Asked], Asked]) -> None:
        """There are so many now; `as_classed_now` finds the new one of whom waits."""
        waiting = self._queue.all()
        self._queue = HoldQueue(classes)
        for waiter in waiting:
            waiter.asked = as_classed_now(waiter.asked)
            self._queue.add(waiter, self._patience_s)

    def close(self, why: Turned) -> None:
        """Nothing serves: tell all who wait."""
        self.turn_away(lambda asked: why)
        self._pace.begin_anew(self._clock(), is_pressed=False)

    def turn_away(self, outright: Outright) -> None:
        """Everybody who waits and may not."""
        for waiter in self._queue.all():
            if why := outright(waiter.asked):
                self._turn_away(waiter, why)
        if not self._queue:
            self._wake_at(None)

    def refused_at_once(self, asked: Asked) -> Refusal | None:
        """What `place` would answer however many tokens `asked` has: under a flood, counting those of everybody who is
        refused would keep vLLM's one tokenizing thread from the admitted.

        None also where its tokens are wanted to tell when to come back.
        """
        limits, now = self.capacity.limits, self._clock()
        if len(self._queue) < limits.hold_queue or self.capacity.counts_prompts:
            return None
        self._look_after(now)
        if len(self._queue) < limits.hold_queue or (not self._queue and not self.capacity.wait_s(asked, now)):
            return None
        self._queue.wants(asked.class_rank, self._patience_s, now)
        if self._queue.has_lesser(asked.class_rank, self._patience_s, now):
            return None
        self._pace.found_no_room(now)
        refusal = self._refusal("queue_full", asked, now, _full(len(self._queue)))
        self._tally.refused(refusal.reason, asked.class_name)
        return refusal

    async def place(self, asked: Asked, held: HeldRequest) -> Passage | Turned | None:
        """A place, at once or after a wait. None: the client has gone."""
        now = self._clock()
        if not len(self._queue) and self.capacity.wait_s(asked, now) == 0.0:
            self._take(asked, now, has_waited=False)
            return Passage(self.left, asked, held)
        if not self.held_bytes.fits(held.kept_bytes):
            refusal = self._refusal("queue_full", asked, now, "their prompts fill the memory set aside for them")
            self._tally.refused(refusal.reason, asked.class_name)
            return refusal
        waiter = _Waiter(asked, now)
        self._enqueue(waiter)
        self._look_after(now)
        if not waiter.decided.done():
            self._pace.found_no_room(now)
        if len(self._queue) > self.capacity.limits.hold_queue:
            self._make_room(waiter, now)
        if not waiter.decided.done():
            self._tally.held()
        try:
            is_there = await held.until_done(waiter.decided, self.held_bytes)
        except BaseException:  # its task was cancelled, or the server failed to read from it
            self._forget(waiter)
            held.drop()
            raise
        if not is_there:
            self._forget(waiter)
            held.drop()
            return None
        turned = waiter.decided.result()
        if turned is None:
            return Passage(self.left, waiter.asked, held)
        held.drop()
        return turned

    def left(self, asked: Asked) -> None:
        """A place is free; to be called once for each that was taken."""
        now = self._clock()
        self.capacity.give_back(asked, now)
        if len(self._queue):
            self._look_after(now)

    @property
    def _patience_s(self) -> float:
        return self.capacity.limits.hold_deadline_s / 2

    def _look_after(self, now: float) -> None:
        """Let in whose turn it is, turn away who has waited too long, and come back when that may have changed."""
        ready_at = self._admit(now)
        deadline_s = self.capacity.limits.hold_deadline_s
        has_late = False
        while (oldest := self._queue.oldest()) and oldest.since + deadline_s <= now:
            self._refuse(oldest, "deadline", f"this request has waited for {deadline_s:g} s", now)
            has_late = True
        if has_late:  # who needed many places may have held up others
            ready_at = self._admit(now)
            oldest = self._queue.oldest()
        self._wake_at(min(ready_at, oldest.since + deadline_s) if oldest else None)

    def _admit(self, now: float) -> float:
        """Everybody in who may go; returns when the next one may, infinity where no clock says so."""
        while waiter := self._queue.next(self._patience_s, now):
            wait_s = self.capacity.wait_s(waiter.asked, now)
            if wait_s > 0.0:
                return now + wait_s
            self._dequeue(waiter)
            self._take(waiter.asked, now, has_waited=waiter.since < now)
            if waiter.since < now:
                self._tally.waited(now - waiter.since, now)
            waiter.decided.set_result(None)
        return math.inf

    def _take(self, asked: Asked, now: float, *, has_waited: bool) -> None:
        self.capacity.take(asked, now)
        self._pace.admitted(now, has_waited)
        self._queue.admitted(asked.class_rank, now)
        self._tally.admitted(asked.class_name)

    def _make_room(self, newcomer: _Waiter, now: float) -> None:
        """The queue is too long by `newcomer`: the least leaves, which may be the newcomer itself."""
        least = self._queue.least(self._patience_s, now)
        if least is newcomer:
            self._refuse(newcomer, "queue_full", _full(len(self._queue) - 1), now)
        elif least is not None:
            self._refuse(least, "shed", _SHED, now)

    def _enqueue(self, waiter: _Waiter) -> None:
        self._queue.add(waiter, self._patience_s)
        self.capacity.queue(waiter.asked, 1)

    def _dequeue(self, waiter: _Waiter) -> None:
        if self._queue.remove(waiter, self._clock()):
            self.capacity.queue(waiter.asked, -1)

    def _refuse(self, waiter: _Waiter, reason: str, why: str, now: float) -> None:
        self._dequeue(waiter)  # when to come back is counted without it
        self._turn_away(waiter, self._refusal(reason, waiter.asked, now, why))

    def _turn_away(self, waiter: _Waiter, why: Turned) -> None:
        self._dequeue(waiter)
        self._tally.refused(reason_of(why), waiter.asked.class_name)
        waiter.decided.set_result(why)

    def _forget(self, waiter: _Waiter) -> None:
        """Nobody waits for its answer any more."""
        if not waiter.decided.done():
            waiter.decided.cancel()
            self._dequeue(waiter)
            self._tally.gone()
            self._look_after(self._clock())
        elif not waiter.decided.cancelled() and waiter.decided.result() is None:
            self.left(waiter.asked)

    def _wake_at(self, when: float | None) -> None:
        if self._wake is not None:
            if when is not None and when >= self._wakes_at:
                return  # too early does no harm, and is cheaper than a new timer each time somebody leaves
            self._wake.cancel()
            self._wake = None
        if when is not None:
            self._wakes_at = when
            delay_s = max(_SOONEST_S, when - self._clock())
            self._wake = asyncio.get_running_loop().call_later(delay_s, self._on_wake)

    def _on_wake(self) -> None:
        self._wake = None
        self._look_after(self._clock())

    def _refusal(self, reason: str, asked: Asked, now: float, why: str) -> Refusal:
        text = f"The server is at its limit ({self.capacity.words(asked, now)}), and {why}."
        retry_after_s = self.capacity.retry_after_s(asked, now, len(self._queue), self._pace.per_s(now))
        return come_again(reason, text, retry_after_s, self.capacity.limits.hold_deadline_s)
