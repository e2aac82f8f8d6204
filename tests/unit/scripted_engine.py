"""An engine that does on demand what a real one will not: hang, fail to start, die at a given moment."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from engine_host.engine.port import (
    AsgiApp,
    Backlog,
    Bound,
    Death,
    Engine,
    EngineFacts,
    EngineStartError,
    FrontRequest,
    Handling,
    LiveScheduler,
    Receive,
    Scope,
    Send,
    StepSink,
    StepStats,
)
from engine_host.protocol.errors import OperatorError

from .scripted_scheduler import ScriptedScheduler

FACTS = EngineFacts(
    vllm_version="0.32.0",
    model="scripted",
    max_model_len_tokens=2048,
    block_size=32,
    total_blocks=100,
    capacity_tokens=3200,
    speculation_method="ngram",
    k_max=5,
    prefix_caching=True,
    core_pids=(1234,),
)


@dataclass
class ScriptedStream:
    """A request in flight: what becomes of it is written down."""

    name: str
    carryable: bool = True
    untouched: bool = False
    """Its client has received nothing yet."""
    is_too_long: bool = False
    """For any other engine, which that engine alone knows."""
    is_replayed: bool = False
    is_given_up: bool = False
    went_on_in: list[ScriptedEngine] = field(default_factory=list)
    ended_with: str | None = None


@dataclass
class ScriptedEngine:
    """Each switch is a test's to set; the defaults start at once and live for ever."""

    start_error: str | None = None
    start_hangs: bool = False
    prepare_error: str | None = None
    prepare_hangs: bool = False
    """Until `go_on`."""
    is_prepared: bool = False
    is_dead: bool = False
    by_signal: bool = False
    unfinished: int = 0
    stopped_with: list[float] = field(default_factory=list)
    sink: StepSink | None = None
    streams: list[ScriptedStream] = field(default_factory=list)
    refusal: str | None = None
    """Of the profile's keys, at the start."""
    probe_error: str | None = None
    adopt_error: str | None = None
    is_mute: bool = False
    """Gives no token."""
    successor: Engine | None = None
    has_metrics: bool = True
    is_app_closed: bool = False
    scheduler: ScriptedScheduler | str = "a scripted engine has no scheduler"
    """What is inside, or why there is nothing."""
    front: list[FrontRequest] = field(default_factory=list)
    """The unfinished requests, as the front end has them."""
    aborted: list[tuple[str, str]] = field(default_factory=list)
    """`(request id, what its client was told)`."""
    ahead_hangs: bool = False
    computed_ahead_s: float | None = None
    """What it was given for it; None: it was not asked."""
    go_on: asyncio.Event = field(default_factory=asyncio.Event)
    _released: asyncio.Event = field(default_factory=asyncio.Event)

    async def prepare(self, sink: StepSink) -> None:
        self.is_prepared = True
        if self.prepare_hangs:
            await self.go_on.wait()
        if self.prepare_error is not None:
            raise EngineStartError(self.prepare_error)

    async def start(self, sink: StepSink) -> None:
        self.sink = sink
        if self.start_hangs:
            await self._released.wait()
            raise EngineStartError("stopped while starting")
        if self.start_error is not None:
            raise EngineStartError(self.start_error)
        if self.refusal is not None:
            raise OperatorError(self.refusal)

    @property
    def app(self) -> AsgiApp:
        return self._answer

    @property
    def facts(self) -> EngineFacts:
        return FACTS

    @property
    def death(self) -> Death | None:
        return (
            Death("the engine core (pid 1234) was killed by SIGKILL", by_signal=self.by_signal)
            if self.is_dead
            else None
        )

    def backlog(self) -> Backlog:
        return Backlog(self.unfinished)

    def requests(self) -> list[FrontRequest]:
        return list(self.front)

    @property
    def live(self) -> LiveScheduler | str:
        return self.scheduler

    def abort(self, request_id: str, error: str) -> bool:
        left = [request for request in self.front if request.id != request_id]
        is_there = len(left) < len(self.front)
        self.front = left
        if is_there:
            self.aborted.append((request_id, error))
        return is_there

    async def probe(self, timeout_s: float) -> None:
        if self.probe_error is not None:
            raise EngineStartError(self.probe_error)

    def handling(self, bound: Bound) -> Handling:
        fates = [self._fate(stream, bound) for stream in self.streams]
        return Handling(carry=fates.count("carry"), drain=fates.count("drain"), replay=fates.count("replay"))

    def _fate(self, stream: ScriptedStream, bound: Bound) -> str:
        if stream.carryable and bound.reason is None:
            return "carry"
        return "replay" if stream.untouched else "drain"

    async def hand_over(self, bound: Bound, error: str) -> list[ScriptedStream]:
        if self.is_dead:
            for stream in self.streams:
                stream.ended_with = "the engine has died"
            return []
        handed: list[ScriptedStream] = []
        for stream in self.streams:
            fate = self._fate(stream, bound)
            if fate == "drain":
                stream.ended_with = error
            else:
                stream.is_replayed = fate == "replay"
                handed.append(stream)
        self.streams = []
        return handed

    async def compute_ahead(self, other: Engine, bound: Bound, timeout_s: float) -> int:
        self.computed_ahead_s = timeout_s
        if self.ahead_hangs:
            await asyncio.Event().wait()
        return other.handling(bound).carry

    async def adopt(self, carried: Sequence[ScriptedStream], error: str) -> list[ScriptedStream]:
        if self.adopt_error is not None:
            raise EngineStartError(self.adopt_error)
        for stream in carried:
            if stream.is_too_long:
                stream.ended_with = error
                continue
            stream.went_on_in.append(self)
            self.streams.append(stream)
        if self.streams and self.sink is not None and not self.is_mute:
            sink = self.sink
            asyncio.get_running_loop().call_soon(lambda: sink(StepStats(0, generation_tokens=1)))
        return list(self.streams)

    def succeed(self, successor: Engine | None, error: str) -> None:
        self.successor = successor

    def reclaim_metrics(self) -> None:
        self.has_metrics = True

    def drop(self, carried: Sequence[ScriptedStream], error: str) -> None:
        for stream in carried:
            stream.ended_with = error

    async def stop(self, timeout_s: float, *, keep_app: bool = False) -> None:
        self.stopped_with.append(timeout_s)
        self._released.set()
        if not keep_app:
            await self.close_app()

    async def close_app(self) -> None:
        self.is_app_closed = True

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        message: MutableMapping[str, Any] = {"type": "http.response.start", "status": 200, "headers": []}
        await send(message)
        await send({"type": "http.response.body", "body": b"ok"})
