"""The gate in front of vLLM's app: who goes in now, who waits, who is turned away.

`enter` reads a request's body, learns from it what it costs, and returns its `Passage` when there is a place for it;
the place is taken until `Passage.leave`. An admission is one step on the event loop, without an `await` in it. Per
token the gate does nothing: vLLM's app is given the server's own `send`.

| who comes | is |
|---|---|
| costs nothing (no API key, or no JSON object: vLLM refuses it itself) | let through |
| while nothing serves, or the gate drains | told so, 503 |
| of a class below `min_class` | refused: `class` |
| whose turn it is, when cap and rates allow it | admitted |
| else | waits |
| is the least of a hold queue that is too long | refused: `queue_full`, or `shed` when it had waited |
| waits for the hold deadline | refused: `deadline` |
| waits, and its client hangs up | forgotten |
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import math
import time
from collections.abc import Callable

from engine_host.engine.port import AsgiApp, Receive, Scope
from engine_host.gateway.api_keys import ApiKeys
from engine_host.gateway.asked import Asked, Prepare, choices_of, priority_of, read_fields
from engine_host.gateway.capacity import Capacity
from engine_host.gateway.gate_tally import GateTally, Windows
from engine_host.gateway.held_request import HeldBytes, HeldRequest
from engine_host.gateway.hold_queue import HoldQueue
from engine_host.gateway.inference_paths import INFERENCE_PATHS, MULTIPART
from engine_host.gateway.pace import Pace
from engine_host.gateway.priority_classes import PriorityClasses
from engine_host.gateway.refusals import Refusal
from engine_host.gateway.unavailable import Unavailable
from engine_host.profiles.throttle_table import Throttle
from engine_host.protocol.throttling import GateCounts
from engine_host.throttle.limits import Limits

_HELD_BYTES = 512 << 20
"""Of the bodies of all that wait: what waits must not fill the machine's memory, however long its prompts are."""
_SOONEST_S = 0.001
"""Of timers: an event loop's clock may be a millisecond behind."""

_SHED = "others have taken this request's place in the queue"

Turned = Refusal | Unavailable

logger = logging.getLogger(__name__)


class Passage:
    """The place of one admitted request; to be left when its response is done."""

    __slots__ = ("_asked", "_gate", "held")

    def __init__(self, gate: Gate | None, asked: Asked | None, held: HeldRequest) -> None:
        """`gate` is None where no place was taken."""
        self._gate = gate
        self._asked = asked
        self.held = held

    def app(self, serving: AsgiApp) -> AsgiApp:
        """What answers the request while `serving` is vLLM's app."""
        if self._asked is None or self._asked.through is None:
            return serving
        return self._asked.through(serving)

    def leave(self) -> None:
        self.held.drop()
        gate, self._gate = self._gate, None
        if gate is not None and self._asked is not None:
            gate.left(self._asked)


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


class Gate:
    """On the event loop, like all that uses it. `clock` goes on in seconds, as `time.monotonic`."""

    def __init__(
        self,
        waits: Windows | None = None,
        clock: Callable[[], float] = time.monotonic,
        held_bytes: int = _HELD_BYTES,
    ) -> None:
        """`waits`: where it is kept how long requests wait."""
        self._clock = clock
        self.prepare: Prepare | None = None
        """What is done with a request before it waits; set once, by the composition root."""
        self._app: AsgiApp | None = None
        self._shut: Unavailable | None = None
        self._capacity = Capacity()
        self._keys = ApiKeys()
        self._classes = PriorityClasses(Throttle())
        self._min_rank = 0
        self._queue: HoldQueue[_Waiter] = HoldQueue(len(self._classes.names))
        self._pace = Pace()
        self._held_bytes = HeldBytes(held_bytes)
        self._wake: asyncio.TimerHandle | None = None
        self._wakes_at = 0.0
        self.tally = GateTally(waits)

    # --- what it is told -------------------------------------------------------------------------------------------

    @property
    def limits(self) -> Limits:
        return self._capacity.limits

    def apply(self, limits: Limits) -> None:
        """Put `limits` in force: what they now let in goes at once, what is in flight goes on.

        Who waits and no longer may is told so: below the class, behind the end of a shorter queue, past the deadline.
        """
        now = self._clock()
        was_paused = self.limits.paused
        self._capacity.apply(limits, now)
        self._min_rank = self._classes.rank_of(limits.min_class)
        if was_paused and not limits.paused:
            self._queue.begin_anew(now)
        for waiter in self._queue.all():
            if refusal := self._outright(waiter.asked, now):
                self._turn_away(waiter, refusal)
        self._look_after(now)
        while len(self._queue) > limits.hold_queue and (least := self._queue.least(self._patience_s, now)):
            self._refuse(least, "shed", _SHED, now)

    def set_classes(self, table: Throttle) -> None:
        """The priority classes of `table`, and how a request comes by one. Who waits keeps its class by its name."""
        self._classes = PriorityClasses(table)
        self._min_rank = self._classes.rank_of(self.limits.min_class)
        waiting = self._queue.all()
        self._queue = HoldQueue(len(self._classes.names))
        for waiter in waiting:
            waiter.asked = self._as_classed_now(waiter.asked)
            self._queue.add(waiter)

    def set_api_keys(self, keys: ApiKeys) -> None:
        """Those that vLLM's app takes."""
        self._keys = keys

    def open(self, app: AsgiApp) -> None:
        """`app` serves; it is the one that a request is prepared with."""
        self._app = app
        self._shut = None

    def close(self, why: Unavailable) -> None:
        """Nothing serves new requests: who waits is told `why` at once, and whoever comes until `open`."""
        self._app = None
        self._shut = why
        for waiter in self._queue.all():
            self._turn_away(waiter, why)
        self._wake_at(None)

    # --- what it tells ---------------------------------------------------------------------------------------------

    @property
    def inflight(self) -> int:
        """Choices that were let in and have not ended."""
        return self._capacity.inflight

    @property
    def held(self) -> int:
        """Requests that wait now."""
        return len(self._queue)

    @property
    def oldest_held_s(self) -> float | None:
        oldest = self._queue.oldest()
        return None if oldest is None else self._clock() - oldest.since

    def counts(self) -> GateCounts:
        held = [(name, self._queue.held(rank)) for rank, name in enumerate(self._classes.names)]
        return self.tally.counts(self.inflight, self.oldest_held_s, held, self._clock())

    # --- one request -----------------------------------------------------------------------------------------------

    async def enter(self, path: str, scope: Scope, receive: Receive) -> Passage | Turned | None:
        """Wait for a place. None: the client has gone. Whoever gets a `Passage` has to leave it.

        `path` is the listed one that `scope` asks for (`inference_paths`).
        """
        held = HeldRequest(receive)
        if self._keys.are_missed_by(scope):
            return Passage(None, None, held)
        asked = await self._read(path, scope, held)
        if asked is None:
            return None
        if asked.choices == 0:
            return Passage(None, None, held)
        now = self._clock()
        turned = self._shut or self._outright(asked, now)
        if turned is None and self.prepare is not None and self._app is not None:
            prepared = await self._prepared(self.prepare, self._app, asked)
            if isinstance(prepared, Refusal):
                turned = prepared
            else:
                if prepared.body is not asked.body:
                    held.set_body(prepared.body)
                asked = prepared
            now = self._clock()
            asked = self._as_classed_now(asked)
            turned = turned or self._shut or self._outright(asked, now)  # all that may have changed meanwhile
        if turned is None:
            return await self._place(asked, held, now)
        self._count_refusal(asked, turned)
        return turned

    async def _read(self, path: str, scope: Scope, held: HeldRequest) -> Asked | None:
        """What is asked; None when the client hung up before it was said."""
        body, choices, priority = b"", 1, 0
        if scope["type"] == "websocket":
            if not await held.read_first():
                return None
        elif INFERENCE_PATHS[path] is not MULTIPART:
            whole = await held.read_body()
            if whole is None:
                return None
            body = whole
            fields = read_fields(body)
            if fields is None:
                choices = 0
            else:
                choices, priority = choices_of(path, fields), priority_of(fields)
        rank = self._classes.rank(scope, priority)
        return Asked(
            scope=scope,
            path=path,
            body=body,
            choices=choices,
            class_rank=rank,
            class_name=self._classes.names[rank],
            wants_prompt_tokens=self._capacity.counts_prompts,
        )

    async def _prepared(self, prepare: Prepare, app: AsgiApp, asked: Asked) -> Asked | Refusal:
        try:
            return await prepare(app, asked)
        except Exception:
            logger.exception("a request was not looked into, and goes on as it came")
            return asked

    def _as_classed_now(self, asked: Asked) -> Asked:
        """The class of the same name, should there be other classes than when `asked` was read."""
        rank = self._classes.rank_of(asked.class_name, self._classes.default)
        name = self._classes.names[rank]
        if (rank, name) == (asked.class_rank, asked.class_name):
            return asked
        return dataclasses.replace(asked, class_rank=rank, class_name=name)

    async def _place(self, asked: Asked, held: HeldRequest, now: float) -> Passage | Turned | None:
        """A place, at once or after a wait."""
        if not len(self._queue) and self._capacity.wait_s(asked, now) == 0.0:
            self._take(asked, now, has_waited=False)
            return Passage(self, asked, held)
        if not self._held_bytes.fits(held.kept_bytes):
            refusal = self._refusal("queue_full", asked, now, "their prompts fill the memory set aside for them")
            self._count_refusal(asked, refusal)
            return refusal
        waiter = _Waiter(asked, now)
        self._enqueue(waiter)
        self._look_after(now)
        if not waiter.decided.done():
            self._pace.found_no_room(now)
        if len(self._queue) > self.limits.hold_queue:
            self._make_room(waiter, now)
        if not waiter.decided.done():
            self.tally.held()
        try:
            is_there = await held.until_done(waiter.decided, self._held_bytes)
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
            return Passage(self, waiter.asked, held)
        held.drop()
        return turned

    def left(self, asked: Asked) -> None:
        """A place is free; to be called once for each that was taken."""
        self._capacity.give_back(asked)
        if len(self._queue):
            self._look_after(self._clock())

    # --- who is next -----------------------------------------------------------------------------------------------

    @property
    def _patience_s(self) -> float:
        return self.limits.hold_deadline_s / 2

    def _look_after(self, now: float) -> None:
        """Let in whose turn it is, turn away who has waited too long, and come back when that may have changed."""
        ready_at = self._admit(now)
        deadline_s = self.limits.hold_deadline_s
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
            wait_s = self._capacity.wait_s(waiter.asked, now)
            if wait_s > 0.0:
                return now + wait_s
            self._dequeue(waiter)
            self._take(waiter.asked, now, has_waited=waiter.since < now)
            if waiter.since < now:
                self.tally.waited(now - waiter.since, now)
            waiter.decided.set_result(None)
        return math.inf

    def _take(self, asked: Asked, now: float, *, has_waited: bool) -> None:
        self._capacity.take(asked, now)
        self._pace.admitted(now, has_waited)
        self._queue.admitted(asked.class_rank, now)
        self.tally.admitted(asked.class_name)
        if asked.is_truncated or asked.segments > 1:
            self.tally.reshaped(asked.is_truncated, asked.segments > 1)

    def _make_room(self, newcomer: _Waiter, now: float) -> None:
        """The queue is too long by `newcomer`: the least leaves, which may be the newcomer itself."""
        least = self._queue.least(self._patience_s, now)
        if least is newcomer:
            waiting = len(self._queue) - 1
            self._refuse(newcomer, "queue_full", f"{waiting} wait already" if waiting else "none may wait", now)
        elif least is not None:
            self._refuse(least, "shed", _SHED, now)

    def _enqueue(self, waiter: _Waiter) -> None:
        self._queue.add(waiter)
        self._capacity.queue(waiter.asked, 1)

    def _dequeue(self, waiter: _Waiter) -> None:
        if self._queue.remove(waiter):
            self._capacity.queue(waiter.asked, -1)

    def _refuse(self, waiter: _Waiter, reason: str, why: str, now: float) -> None:
        self._dequeue(waiter)  # when to come back is counted without it
        self._turn_away(waiter, self._refusal(reason, waiter.asked, now, why))

    def _turn_away(self, waiter: _Waiter, why: Turned) -> None:
        self._dequeue(waiter)
        self._count_refusal(waiter.asked, why)
        waiter.decided.set_result(why)

    def _forget(self, waiter: _Waiter) -> None:
        """Nobody waits for its answer any more."""
        if not waiter.decided.done():
            waiter.decided.cancel()
            self._dequeue(waiter)
            self.tally.gone()
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

    # --- what is told ----------------------------------------------------------------------------------------------

    def _outright(self, asked: Asked, now: float) -> Turned | None:
        """Why `asked` need not even wait; None: it may."""
        if self.limits.draining:
            left_s = self._capacity.opens_in_s(now)
            return Unavailable("draining", "The server takes no new requests for now; try another one.", left_s)
        if asked.class_rank < self._min_rank:
            lowest = self._classes.names[self._min_rank]
            text = f"The server takes requests of class {lowest} and above for now, and this one is {asked.class_name}."
            return Refusal("class", text)
        return None

    def _refusal(self, reason: str, asked: Asked, now: float, why: str) -> Refusal:
        text = f"The server is at its limit ({self._capacity.words(asked, now)}), and {why}."
        retry_after_s = self._capacity.retry_after_s(asked, now, len(self._queue), self._pace.per_s(now))
        if retry_after_s is not None:
            text += f" Send it again in {math.ceil(max(1.0, retry_after_s))} s."
        return Refusal(reason, text, retry_after_s=retry_after_s)

    def _count_refusal(self, asked: Asked, why: Turned) -> None:
        self.tally.refused(why.reason if isinstance(why, Refusal) else why.state, asked.class_name)
