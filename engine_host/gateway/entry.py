"""The one ASGI entry: hands requests to the engine that serves, or says clearly why none does.

vLLM's app is attached when an engine is ready and detached before it goes; the HTTP server, its port and its open
connections outlive every engine. Per request this costs a set insertion; per token nothing, since vLLM's app is given
the server's own `receive` and `send`, in all APIs but two (`failing_streams`).
"""

from __future__ import annotations

import asyncio
import itertools
import time

from engine_host.engine.port import AsgiApp, Receive, Scope, Send
from engine_host.gateway.failing_streams import WATCHED
from engine_host.gateway.held_request import HeldRequest
from engine_host.gateway.unavailable import Unavailable, unavailable_body, unavailable_headers

HELD_TOO_LONG = Unavailable("switching", "The server is changing its profile and this request waited too long.", 10.0)


class Entry:
    """Outermost ASGI application of the host."""

    def __init__(self) -> None:
        self._app: AsgiApp | None = None
        self._why = Unavailable("starting", "The engine is starting.")
        self._refusing: Unavailable | None = None
        self._open = asyncio.Event()
        self._open.set()
        self._hold_deadline_s = 0.0
        self._held_since: dict[int, float] = {}
        """When each request that waits now came, oldest first."""
        self._tickets = itertools.count()
        self.held_total = 0
        """Requests that waited since the last `hold` began."""
        self.inflight = 0
        """Requests that apps are answering; reads such as /health and /metrics do not count."""
        self._inflight_by_app: dict[int, int] = {}
        self._left: dict[int, asyncio.Event] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self.admitted_total = 0
        self.refused_total = 0
        self.refused_by_reason: dict[str, int] = {}

    @property
    def held(self) -> int:
        """Requests waiting for the end of `hold` now."""
        return len(self._held_since)

    @property
    def oldest_held_s(self) -> float | None:
        """How long the first of them has waited; None when none waits."""
        first = next(iter(self._held_since.values()), None)
        return None if first is None else time.monotonic() - first

    def attach(self, app: AsgiApp) -> None:
        """Give requests to `app` from now on, those held first."""
        self._app = app
        self._refusing = None
        self._open.set()

    def hold(self, deadline_s: float) -> None:
        """Let new requests wait, each for at most `deadline_s`, until `attach` or `detach`. Reads go on."""
        self._hold_deadline_s = deadline_s
        self.held_total = 0
        self._open.clear()

    def let_go(self) -> None:
        """End `hold` with the app that was there before."""
        self._open.set()

    def refuse(self, why: Unavailable) -> None:
        """Drain: refuse new requests, those held too; let those in flight and all reads through."""
        self._refusing = why
        self._open.set()

    def detach(self, why: Unavailable) -> None:
        """No engine: answer everything with 503 and `why`."""
        self._app = None
        self._refusing = None
        self._why = why
        self._open.set()

    async def wait_idle(self) -> None:
        """Return when nothing is in flight."""
        await self._idle.wait()

    async def wait_left(self, app: AsgiApp) -> None:
        """Return when `app`, which is attached no more, has written its last answer."""
        if id(app) in self._inflight_by_app:
            left = self._left[id(app)] = asyncio.Event()
            await left.wait()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_read = scope["type"] == "http" and scope["method"] in ("GET", "HEAD", "OPTIONS")
        if not self._open.is_set() and not is_read:
            replayed = await self._hold_until_open(receive)
            if replayed is None:
                return
            receive = replayed
        app = self._app
        if app is None or not self._open.is_set():
            await self._answer_unavailable(scope, receive, send, self._why if app is None else HELD_TOO_LONG)
        elif is_read:
            await app(scope, receive, send)
        elif self._refusing is not None:
            await self._answer_unavailable(scope, receive, send, self._refusing)
        else:
            await self._answer(app, scope, receive, send)

    async def _answer(self, app: AsgiApp, scope: Scope, receive: Receive, send: Send) -> None:
        key = id(app)
        self.inflight += 1
        self._inflight_by_app[key] = self._inflight_by_app.get(key, 0) + 1
        self._idle.clear()
        self.admitted_total += 1
        watched = WATCHED.get(scope.get("path", ""))
        stream = watched(send) if watched is not None else None
        try:
            await app(scope, receive, send if stream is None else stream.send)
        except Exception as error:
            if stream is None or not await stream.end(error):
                raise
        finally:
            self.inflight -= 1
            self._inflight_by_app[key] -= 1
            if not self._inflight_by_app[key]:
                del self._inflight_by_app[key]
                if left := self._left.pop(key, None):
                    left.set()
            if not self.inflight:
                self._idle.set()

    async def _hold_until_open(self, receive: Receive) -> Receive | None:
        """Wait; returns a `receive` that repeats what came meanwhile, or None when the client hung up."""
        waiting = HeldRequest(receive)
        ticket = next(self._tickets)
        self._held_since[ticket] = time.monotonic()
        self.held_total += 1
        try:
            return await waiting.until(self._open, self._hold_deadline_s)
        finally:
            del self._held_since[ticket]

    async def _answer_unavailable(self, scope: Scope, receive: Receive, send: Send, why: Unavailable) -> None:
        self.refused_total += 1
        self.refused_by_reason[why.state] = self.refused_by_reason.get(why.state, 0) + 1
        if scope["type"] != "http":
            await receive()
            await send({"type": "websocket.close", "code": 1013, "reason": why.message})
            return
        body = unavailable_body(why)
        headers = [(b"content-length", str(len(body)).encode())]
        headers += [(name.encode(), value.encode()) for name, value in unavailable_headers(why).items()]
        await send({"type": "http.response.start", "status": 503, "headers": headers})
        await send({"type": "http.response.body", "body": body})
