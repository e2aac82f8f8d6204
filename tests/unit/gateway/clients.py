"""An entry with a gate before a model, and its clients: what they send, what they are answered, when they hang up."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, MutableMapping
from typing import Any

from engine_host.engine.port import AsgiApp, Receive, Scope, Send
from engine_host.gateway.entry import Entry
from engine_host.gateway.gate import Gate
from engine_host.profiles.throttle_table import Throttle
from engine_host.protocol.snapshot import WINDOWS
from engine_host.telemetry.latency import LatencyWindows
from engine_host.throttle.limits import Limits

COMPLETIONS = "/v1/completions"


async def until(condition: Callable[[], bool], limit_s: float = 10.0) -> None:
    """Turn the event loop until `condition` holds."""
    async with asyncio.timeout(limit_s):
        while not condition():
            await asyncio.sleep(0)


async def turns(count: int = 20) -> None:
    """Of the event loop, for whatever is ready to run."""
    for _ in range(count):
        await asyncio.sleep(0)


class Client:
    """One request; `start` sends it."""

    def __init__(
        self,
        app: AsgiApp,
        body: dict[str, Any] | bytes | None = None,
        *,
        path: str = COMPLETIONS,
        headers: dict[str, str] | None = None,
        method: str = "POST",
        kind: str = "http",
    ) -> None:
        self._app = app
        self.scope: dict[str, Any] = {"type": kind, "path": path}
        if kind == "http":
            self.scope["method"] = method
        self.scope["headers"] = [(k.lower().encode(), v.encode()) for k, v in (headers or {}).items()]
        raw = body if isinstance(body, bytes) else json.dumps(body or {}).encode()
        first = {"type": "http.request", "body": raw} if kind == "http" else {"type": "websocket.connect"}
        self.messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.messages.put_nowait(first)
        self.sent: list[MutableMapping[str, Any]] = []
        self.task: asyncio.Task[None] | None = None

    def start(self) -> Client:
        self.task = asyncio.create_task(self._run(), name="client")
        return self

    async def _run(self) -> None:
        await self._app(self.scope, self.messages.get, self._send)

    async def _send(self, message: MutableMapping[str, Any]) -> None:
        self.sent.append(message)

    def hang_up(self) -> None:
        kind = "http.disconnect" if self.scope["type"] == "http" else "websocket.disconnect"
        self.messages.put_nowait({"type": kind})

    async def answered(self) -> Client:
        assert self.task is not None
        await asyncio.wait_for(self.task, 10)
        return self

    @property
    def is_done(self) -> bool:
        return self.task is not None and self.task.done()

    @property
    def status(self) -> int:
        return int(self.sent[0]["status"])

    @property
    def told(self) -> dict[str, Any]:
        return dict(json.loads(self.sent[-1]["body"]))

    @property
    def headers(self) -> dict[str, str]:
        return {name.decode(): value.decode() for name, value in self.sent[0]["headers"]}

    @property
    def retry_after(self) -> int | None:
        value = self.headers.get("retry-after")
        return None if value is None else int(value)


class Model:
    """Stands for vLLM's app: answers each request when it is told to, and remembers whom it has seen, in order."""

    def __init__(self) -> None:
        self.seen: list[dict[str, Any]] = []
        self.bodies: list[bytes] = []
        self._ends: list[asyncio.Event] = []
        self.running = 0
        self.most_running = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        message = await receive()
        body = message.get("body", b"")
        while message.get("more_body"):
            message = await receive()
            body += message["body"]
        self.bodies.append(body)
        try:
            self.seen.append(json.loads(body or b"{}"))
        except ValueError:
            await send({"type": "http.response.start", "status": 400, "headers": []})
            await send({"type": "http.response.body", "body": b"{}"})
            return
        end = asyncio.Event()
        self._ends.append(end)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            await end.wait()
        finally:
            self.running -= 1
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})

    def finish(self, index: int = 0) -> None:
        """The answer that began first, or `index` after it."""
        self._ends.pop(index).set()

    def finish_all(self) -> None:
        while self._ends:
            self.finish()

    @property
    def names(self) -> list[str]:
        """The `user` of each request that it has begun, in order."""
        return [str(request.get("user")) for request in self.seen]


class Clock:
    """Stands still until it is told."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


class Served:
    """An entry with a gate in front of a model that answers when it is told to."""

    def __init__(
        self,
        limits: Limits | None = None,
        table: Throttle | None = None,
        held_bytes: int = 1 << 20,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.clock = Clock()
        self.gate = Gate(LatencyWindows(WINDOWS), clock or self.clock, held_bytes)
        self.entry = Entry(self.gate)
        self.model = Model()
        self.entry.attach(self.model)
        if table is not None:
            self.gate.set_classes(table)
        if limits is not None:
            self.gate.apply(limits)

    async def ask(self, name: str = "", **asked: Any) -> Client:
        """A client that has come as far as it goes by itself."""
        options = {key: asked.pop(key) for key in ("path", "headers", "kind") if key in asked}
        client = Client(self.entry, {"user": name, **asked}, **options).start()
        await turns()
        return client

    async def pass_time(self, seconds: float) -> None:
        self.clock.now += seconds
        self.gate._line._on_wake()  # what its timer would do
        await turns()

    async def finish(self, index: int = 0) -> None:
        self.model.finish(index)
        await turns()


BY_HEADER = Throttle(class_header="x-class")
"""Tests say which class a request is of."""


async def of_class(served: Served, name: str, class_name: str) -> Client:
    return await served.ask(name, headers={"x-class": class_name})
