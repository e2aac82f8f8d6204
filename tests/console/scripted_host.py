"""A control server that does what a test tells it: the real protocol on a real socket, and every kind of misbehaviour.

It shares no code with the host's own server, so a mistake in one does not hide a mistake in the other.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from engine_host.protocol.envelope import (
    ErrorCode,
    Request,
    RpcError,
    encode_error,
    encode_notification,
    encode_result,
)
from engine_host.protocol.events import Event
from engine_host.protocol.methods import ALLOWED, METHODS, Applied, EventList, Hello, History, Subscribed
from engine_host.protocol.profiles import ProfileDiff, ProfileList
from engine_host.protocol.snapshot import Snapshot
from engine_host.protocol.switching import SwitchForecast, SwitchResult, SwitchStatus
from tests.console import sample, sample_switch


@dataclass
class ScriptedHost:
    path: Path
    hello: Hello = field(default_factory=sample.hello)
    snapshot: Snapshot = field(default_factory=sample.serving)
    events: list[Event] = field(default_factory=sample.events)
    history: History = field(default_factory=sample.history)
    next_snapshot: Callable[[Snapshot, int], Snapshot] | None = None
    """Makes each streamed snapshot from the first and its number; None: the same one again."""
    interval_s: float | None = None
    """Overrides the interval that a subscriber asks for."""
    silent: set[str] = field(default_factory=set)
    """Methods that are never answered; `hello` and `telemetry` too."""
    dropping: set[str] = field(default_factory=set)
    """Methods on whose arrival the connection is closed."""
    held: dict[str, asyncio.Event] = field(default_factory=dict)
    """Methods answered only once their event is set; other calls are answered meanwhile."""
    failing: dict[str, RpcError] = field(default_factory=dict)
    profiles: ProfileList = field(default_factory=sample_switch.profiles)
    diff: ProfileDiff = field(default_factory=sample_switch.diff)
    forecast: SwitchForecast = field(default_factory=sample_switch.forecast)
    result: SwitchResult = field(default_factory=sample_switch.result)
    last: SwitchResult | None = None
    """Of the last switch; the one under way is the snapshot's."""
    on: dict[str, Callable[[dict[str, Any]], None]] = field(default_factory=dict)
    """By method: told the parameters of each call before it is answered."""
    answers: dict[str, Any] = field(default_factory=dict)
    """Method -> its result or a function of the parameters, for those that this host has no opinion of its own on."""
    raw_hello: bytes | None = None
    """Sent in place of hello."""
    asked: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    """Every call that arrived: (method, params)."""
    is_ending: bool = True
    """After `host.stop` it ends as a host does: connections first, then the socket. False: it stays."""
    before_unlinking: asyncio.Event | None = None
    """Waited for between the two."""
    connections: int = 0
    streamed: int = 0
    """Snapshots sent to subscribers."""
    _server: asyncio.Server | None = None
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)
    _subscribers: set[asyncio.StreamWriter] = field(default_factory=set)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def start(self) -> None:
        self.path.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(self._accept, str(self.path), limit=1 << 21)

    async def stop(self) -> None:
        """As a killed host: the connections end, the socket file stays."""
        if self._server is not None:
            self._server.close()
        self.drop_all()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()

    def drop_all(self) -> None:
        for writer in self._writers:
            writer.close()

    def send_all(self, frame: bytes) -> None:
        for writer in self._writers:
            writer.write(frame)

    def happened(self, event: Event) -> None:
        """A new event, told to whoever subscribed."""
        self.events.append(event)
        for writer in self._subscribers:
            writer.write(encode_notification("event", event))

    def methods_asked(self) -> list[str]:
        return [method for method, _ in self.asked]

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        with contextlib.suppress(OSError, asyncio.CancelledError):
            await self._converse(reader, writer)
        self._writers.discard(writer)
        self._subscribers.discard(writer)
        self._tasks.discard(task)
        writer.close()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.raw_hello is not None:
            writer.write(self.raw_hello)
        elif "hello" not in self.silent:
            writer.write(encode_notification("hello", self.hello))
        while line := await reader.readline():
            request = msgspec.json.decode(line, type=Request)
            self.asked.append((request.method, msgspec.json.decode(request.params)))
            if request.method in self.dropping:
                return
            if request.method in self.silent:
                continue
            if request.method in self.on:
                self.on[request.method](self.asked[-1][1])
            if request.method in self.held:
                self._tasks.add(asyncio.create_task(self._answer_later(request, writer)))
                continue
            answer = self._answer(request, writer)
            writer.write(answer)
            await writer.drain()
            if request.method == "host.stop" and b'"result"' in answer and self.is_ending:
                self._tasks.add(asyncio.create_task(self._end()))

    async def _end(self) -> None:
        assert self._server is not None
        self._server.close()
        self.drop_all()
        if self.before_unlinking is not None:
            await self.before_unlinking.wait()
        self.path.unlink()

    async def _answer_later(self, request: Request, writer: asyncio.StreamWriter) -> None:
        await self.held[request.method].wait()
        writer.write(self._answer(request, writer))

    def _answer(self, request: Request, writer: asyncio.StreamWriter) -> bytes:
        method = METHODS.get(request.method)
        if method is None:
            return encode_error(
                request.id, RpcError(ErrorCode.UNKNOWN_METHOD, "no such method", {"remedy": "see help"})
            )
        if error := self.failing.get(request.method):
            return encode_error(request.id, error)
        if method.risk not in ALLOWED[self.hello.role]:
            told = {"remedy": "ask an admin"}
            return encode_error(request.id, RpcError(ErrorCode.ROLE, f"needs more than {self.hello.role}", told))
        params = msgspec.json.decode(request.params, type=method.params)
        if request.method in self.answers:
            answer = self.answers[request.method]
            result = answer(params) if callable(answer) else answer
            return (encode_error if isinstance(result, RpcError) else encode_result)(request.id, result)
        match request.method:
            case "status":
                return encode_result(request.id, self.snapshot)
            case "history":
                return encode_result(request.id, self.history)
            case "telemetry.subscribe":
                interval_s = self.interval_s or params.interval_s  # type: ignore[attr-defined]
                self._tasks.add(asyncio.create_task(self._stream(writer, interval_s)))
                return encode_result(request.id, Subscribed(seq=self.snapshot.seq))
            case "events.list":
                after, limit = params.after_seq, params.limit  # type: ignore[attr-defined]
                kept = [e for e in self.events if e.seq > after]
                last = self.events[-1].seq if self.events else 0
                missed = bool(self.events) and self.events[0].seq > after + 1
                return encode_result(request.id, EventList(events=kept[-limit:], last_seq=last, missed=missed))
            case "events.subscribe":
                self._subscribers.add(writer)
                after = params.after_seq  # type: ignore[attr-defined]
                replay = b"".join(
                    encode_notification("event", e) for e in self.events if after is not None and e.seq > after
                )
                return encode_result(request.id, Subscribed(seq=len(self.events))) + replay
            case "profiles.list":
                return encode_result(request.id, self.profiles)
            case "profiles.diff":
                return encode_result(request.id, msgspec.structs.replace(self.diff, after=params.after))  # type: ignore[attr-defined]
            case "switch.forecast":
                tier = params.tier or self.forecast.tier  # type: ignore[attr-defined]
                told = msgspec.structs.replace(self.forecast, to_profile=params.profile, tier=tier)  # type: ignore[attr-defined]
                return encode_result(request.id, told)
            case "switch.status":
                return encode_result(request.id, SwitchStatus(active=self.snapshot.engine.switch, last=self.last))
            case "switch":
                return encode_result(request.id, self.result)
            case _:
                applied = Applied(
                    state=self.snapshot.state, state_version=8, took_s=1.5, text=f"{request.method} is done"
                )
                return encode_result(request.id, applied)

    async def _stream(self, writer: asyncio.StreamWriter, interval_s: float) -> None:
        number = 0
        while not writer.is_closing():
            if "telemetry" not in self.silent:
                number += 1
                made = self.next_snapshot(self.snapshot, number) if self.next_snapshot else self.snapshot
                writer.write(encode_notification("telemetry", made))
                self.streamed += 1
                await writer.drain()
            await asyncio.sleep(interval_s)


@contextlib.asynccontextmanager
async def scripted_host(path: Path, **script: Any) -> AsyncIterator[ScriptedHost]:
    host = ScriptedHost(path, **script)
    await host.start()
    try:
        yield host
    finally:
        await host.stop()
