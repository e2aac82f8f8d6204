"""The one ASGI entry: hands requests to the engine that serves, or says clearly why none does.

vLLM's app is attached when an engine is ready and detached before it goes; the HTTP server, its port and its open
connections outlive every engine. Per request this costs a set insertion; per token nothing, since vLLM's app is given
the server's own `receive` and `send`.
"""

from __future__ import annotations

import asyncio

from engine_host.engine.port import AsgiApp, Receive, Scope, Send
from engine_host.gateway.unavailable import Unavailable, unavailable_body


class Entry:
    """Outermost ASGI application of the host."""

    def __init__(self) -> None:
        self._app: AsgiApp | None = None
        self._why = Unavailable("starting", "The engine is starting.")
        self._refusing: Unavailable | None = None
        self._inflight: set[int] = set()
        self._next = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self.admitted_total = 0
        self.refused_total = 0
        self.refused_by_reason: dict[str, int] = {}

    @property
    def inflight(self) -> int:
        """Requests that vLLM's app is answering; reads such as /health and /metrics do not count."""
        return len(self._inflight)

    def attach(self, app: AsgiApp) -> None:
        """Give requests to `app` from now on."""
        self._app = app
        self._refusing = None

    def refuse(self, why: Unavailable) -> None:
        """Drain: refuse new requests, let those in flight and all reads through."""
        self._refusing = why

    def detach(self, why: Unavailable) -> None:
        """No engine: answer everything with 503 and `why`."""
        self._app = None
        self._refusing = None
        self._why = why

    async def wait_idle(self) -> None:
        """Return when nothing is in flight."""
        await self._idle.wait()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._app
        if app is None:
            await self._answer_unavailable(scope, receive, send, self._why)
            return
        if scope["type"] == "http" and scope["method"] in ("GET", "HEAD", "OPTIONS"):
            await app(scope, receive, send)
            return
        if self._refusing is not None:
            await self._answer_unavailable(scope, receive, send, self._refusing)
            return
        self._next += 1
        ticket = self._next
        self._inflight.add(ticket)
        self._idle.clear()
        self.admitted_total += 1
        try:
            await app(scope, receive, send)
        finally:
            self._inflight.discard(ticket)
            if not self._inflight:
                self._idle.set()

    async def _answer_unavailable(self, scope: Scope, receive: Receive, send: Send, why: Unavailable) -> None:
        self.refused_total += 1
        self.refused_by_reason[why.state] = self.refused_by_reason.get(why.state, 0) + 1
        if scope["type"] != "http":
            await receive()
            await send({"type": "websocket.close", "code": 1013, "reason": why.message})
            return
        body = unavailable_body(why)
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        if why.retry_after_s is not None:
            headers.append((b"retry-after", str(max(1, round(why.retry_after_s))).encode()))
        await send({"type": "http.response.start", "status": 503, "headers": headers})
        await send({"type": "http.response.body", "body": body})
