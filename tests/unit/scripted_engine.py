"""An engine that does on demand what a real one will not: hang, fail to start, die at a given moment."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from dataclasses import dataclass, field
from typing import Any

from engine_host.engine.port import (
    AsgiApp,
    Backlog,
    Death,
    EngineFacts,
    EngineStartError,
    Receive,
    Scope,
    Send,
    StepSink,
)

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
class ScriptedEngine:
    """Each switch is a test's to set; the defaults start at once and live for ever."""

    start_error: str | None = None
    start_hangs: bool = False
    is_dead: bool = False
    by_signal: bool = False
    unfinished: int = 0
    stopped_with: list[float] = field(default_factory=list)
    sink: StepSink | None = None
    _released: asyncio.Event = field(default_factory=asyncio.Event)

    async def start(self, sink: StepSink) -> None:
        self.sink = sink
        if self.start_hangs:
            await self._released.wait()
            raise EngineStartError("stopped while starting")
        if self.start_error is not None:
            raise EngineStartError(self.start_error)

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

    async def stop(self, timeout_s: float) -> None:
        self.stopped_with.append(timeout_s)
        self._released.set()

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        message: MutableMapping[str, Any] = {"type": "http.response.start", "status": 200, "headers": []}
        await send(message)
        await send({"type": "http.response.body", "body": b"ok"})
