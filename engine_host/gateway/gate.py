"""The gate in front of vLLM's app: who goes in now, who waits, who is turned away.

`enter` reads a request's body, learns from it what it costs, and returns its `Passage` when there is a place for it;
the place is taken until `Passage.leave`. Per token the gate does nothing: vLLM's app is given the server's own `send`.

| who comes | is |
|---|---|
| costs nothing (no API key, or no JSON object: vLLM refuses it itself) | let through |
| is nested too deeply to be read | refused: `too_deep`, 400 |
| while nothing serves, or the gate drains | told so, 503 |
| of a class below `min_class` | refused: `class` |
| whose turn it is, when cap and rates allow it | admitted |
| else | waits |
| is the least of a hold queue that is too long | refused: `queue_full`, or `shed` when it had waited |
| waits for the hold deadline | refused: `deadline` |
| waits, and its client hangs up | forgotten |
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable

from engine_host.engine.port import AsgiApp, Receive, Scope
from engine_host.gateway import come_back
from engine_host.gateway.api_keys import ApiKeys
from engine_host.gateway.asked import TOO_DEEP, Asked, Prepare, choices_of, priority_of, read_fields
from engine_host.gateway.gate_tally import GateTally, Windows
from engine_host.gateway.held_request import HeldRequest
from engine_host.gateway.inference_paths import INFERENCE_PATHS, MULTIPART
from engine_host.gateway.line import HELD_BYTES, Line, Turned, reason_of
from engine_host.gateway.passage import Passage
from engine_host.gateway.priority_classes import PriorityClasses
from engine_host.gateway.refusals import Refusal, come_again
from engine_host.gateway.unavailable import Unavailable
from engine_host.profiles.throttle_table import Throttle
from engine_host.protocol.throttling import GateCounts
from engine_host.throttle.limits import Limits

logger = logging.getLogger(__name__)


class Gate:
    """On the event loop, like all that uses it. `clock` goes on in seconds, as `time.monotonic`."""

    def __init__(
        self,
        waits: Windows | None = None,
        clock: Callable[[], float] = time.monotonic,
        held_bytes: int = HELD_BYTES,
    ) -> None:
        """`waits`: where it is kept how long requests wait."""
        self._clock = clock
        self.prepare: Prepare | None = None
        """What is done with a request before it waits; set once, by the composition root."""
        self._app: AsgiApp | None = None
        self._openings = 0
        self._shut: Unavailable | None = None
        self._keys = ApiKeys()
        self._classes = PriorityClasses(Throttle())
        self._min_rank = 0
        self.tally = GateTally(waits)
        self._line = Line(len(self._classes.names), self.tally, clock, held_bytes)

    # --- what it is told -------------------------------------------------------------------------------------------

    @property
    def limits(self) -> Limits:
        return self._line.capacity.limits

    def apply(self, limits: Limits) -> None:
        """Put `limits` in force: what they now let in goes at once, what is in flight goes on.

        Who waits and no longer may is told so: below the class, behind the end of a shorter queue, past the deadline.
        """
        self._min_rank = self._classes.rank_of(limits.min_class)
        self._line.apply(limits, self._outright)

    def set_classes(self, table: Throttle) -> None:
        """The priority classes of `table`, and how a request comes by one. Who waits keeps its class by its name."""
        self._classes = PriorityClasses(table)
        self._min_rank = self._classes.rank_of(self.limits.min_class)
        self._line.set_classes(len(self._classes.names), self._as_classed_now)

    def set_api_keys(self, keys: ApiKeys) -> None:
        """Those that vLLM's app takes."""
        self._keys = keys

    def open(self, app: AsgiApp) -> None:
        """`app` serves; it is the one that a request is prepared with.

        What was prepared before was so for another engine, or by another profile: `prepare_again`.
        """
        self._app = app
        self._openings += 1
        self._shut = None

    def close(self, why: Unavailable) -> None:
        """Nothing serves new requests: who waits is told `why` at once, and whoever comes until `open`."""
        self._app = None
        self._shut = why
        self._line.close(why)

    # --- what it tells ---------------------------------------------------------------------------------------------

    @property
    def inflight(self) -> int:
        """Choices that were let in and have not ended."""
        return self._line.capacity.inflight

    @property
    def held(self) -> int:
        """Requests that wait now."""
        return len(self._line)

    @property
    def oldest_held_s(self) -> float | None:
        return self._line.oldest_s

    def counts(self) -> GateCounts:
        held = [(name, self._line.held(rank)) for rank, name in enumerate(self._classes.names)]
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
        if isinstance(asked, Refusal):
            self.tally.refused(asked.reason)
            return asked
        if asked.choices == 0:
            return Passage(None, None, held)
        came, turned = asked, self._shut or self._outright(asked)
        opening = self._openings
        if turned is None and self.prepare is not None:
            if (refusal := self._line.refused_at_once(asked)) is not None:
                return refusal
            prepared = await self._prepared(asked)
            opening = self._openings
            if isinstance(prepared, Refusal):
                turned = prepared
            else:
                if prepared.body is not came.body:
                    held.replace_body(prepared.body)
                asked = prepared
            asked = self._as_classed_now(asked)
            turned = turned or self._shut or self._outright(asked)  # all that may have changed meanwhile
        if turned is not None:
            self.tally.refused(reason_of(turned), asked.class_name)
            return turned
        entered = await self._line.place(asked, held)
        if isinstance(entered, Passage):
            entered.came, entered.opening = came, opening
        return entered

    def is_prepared(self, passage: Passage) -> bool:
        """For the engine and the profile that serve now."""
        return passage.came is None or passage.opening == self._openings

    async def prepare_again(self, passage: Passage) -> Refusal | None:
        """As it came, for the engine and the profile that serve now; why it may not go to them, or None.

        Its place stays taken, and what it took of the rates as it was counted for the engine before.
        """
        came, former = passage.came, passage.asked
        assert came is not None and former is not None, "asked for one that was prepared"
        prepared = await self._prepared(came)
        passage.opening = self._openings
        if isinstance(prepared, Refusal):
            return prepared
        if prepared.body is not former.body:
            passage.held.replace_body(prepared.body)
        passage.asked = prepared
        return None

    def answering(self, passage: Passage, app: AsgiApp) -> AsgiApp:
        """What answers it while `app` serves: from now on it goes nowhere else."""
        asked, passage.came = passage.asked, None
        if asked is None:
            return app
        if asked.is_truncated or asked.segments > 1:
            self.tally.reshaped(asked.is_truncated, asked.segments > 1)
        return app if asked.through is None else asked.through(app)

    async def _read(self, path: str, scope: Scope, held: HeldRequest) -> Asked | Refusal | None:
        """What is asked, or why that cannot be known; None when the client hung up before it was said."""
        body, choices, priority = b"", 1, 0
        if scope["type"] == "websocket":
            if not await held.read_first():
                return None
        elif INFERENCE_PATHS[path] is not MULTIPART:
            whole = await held.read_body()
            if whole is None:
                return None
            body = whole
            try:
                fields = read_fields(body)
                if fields is None:
                    choices = 0
                else:
                    choices, priority = choices_of(path, fields), priority_of(fields)
            except RecursionError:
                return TOO_DEEP
        rank = self._classes.rank(scope, priority)
        return Asked(
            scope=scope,
            path=path,
            body=body,
            choices=choices,
            class_rank=rank,
            class_name=self._classes.names[rank],
            wants_prompt_tokens=self._line.capacity.counts_prompts,
        )

    async def _prepared(self, asked: Asked) -> Asked | Refusal:
        """For the engine and the profile that serve when this returns."""
        while self.prepare is not None and (app := self._app) is not None:
            opening = self._openings
            try:
                prepared = await self.prepare(app, asked)
            except Exception:
                logger.exception("a request was not looked into, and goes on as it came")
                prepared = asked
            if opening == self._openings:
                return prepared
        return asked

    def _as_classed_now(self, asked: Asked) -> Asked:
        """The class of the same name, should there be other classes than when `asked` was read."""
        rank = self._classes.rank_of(asked.class_name, self._classes.default)
        name = self._classes.names[rank]
        if (rank, name) == (asked.class_rank, asked.class_name):
            return asked
        return dataclasses.replace(asked, class_rank=rank, class_name=name)

    # --- what is told ----------------------------------------------------------------------------------------------

    def _outright(self, asked: Asked) -> Turned | None:
        """Why `asked` need not even wait; None: it may."""
        now = self._clock()
        if self.limits.draining:
            left_s = self._line.capacity.opens_in_s(now)
            if left_s is None:
                left_s = come_back.where_unknown_s(self.limits.hold_deadline_s)
            return Unavailable("draining", "The server takes no new requests for now; try another one.", left_s)
        if asked.class_rank < self._min_rank:
            lowest = self._classes.names[self._min_rank]
            text = f"The server takes requests of class {lowest} and above for now, and this one is {asked.class_name}."
            rank = asked.class_rank
            left_s = self._line.capacity.eases_in_s(lambda then: self._classes.rank_of(then.min_class) <= rank, now)
            return come_again("class", text, left_s, self.limits.hold_deadline_s)
        return None
