"""The one ASGI entry: hands requests to the engine that serves, or says clearly why none does.

vLLM's app is attached when an engine is ready and detached before it goes; the HTTP server, its port and its open
connections outlive every engine. What costs the engine something passes the throttle's gate first and a switch's hold
then: whoever waits at the gate is in no app's hands, goes to the app that serves when its turn comes, and is told at
once when none does any more. Per token nothing happens here: vLLM's app is given the
server's own `send`, in all APIs but two (`failing_streams`).
"""

from __future__ import annotations

import asyncio
import itertools
import time

from engine_host.engine.port import AsgiApp, Receive, Scope, Send
from engine_host.gateway import come_back
from engine_host.gateway.failing_streams import WATCHED
from engine_host.gateway.gate import Gate
from engine_host.gateway.held_request import HeldRequest
from engine_host.gateway.inference_paths import inference_path
from engine_host.gateway.line import Turned, reason_of
from engine_host.gateway.passage import Passage
from engine_host.gateway.refusals import Refusal
from engine_host.gateway.unavailable import Unavailable, unavailable_body, unavailable_headers


class Entry:
    """Outermost ASGI application of the host."""

    def __init__(self, gate: Gate | None = None) -> None:
        self.gate = gate or Gate()
        self._app: AsgiApp | None = None
        self._why = Unavailable("starting", "The engine is starting.")
        self._refusing: Unavailable | None = None
        self._open = asyncio.Event()
        self._open.set()
        self._hold_deadline_s = 0.0
        self._hold_expected_s: float | None = None
        """What `hold` is expected to take; None: nothing is known of it."""
        self._hold_began = 0.0
        """By the monotonic clock."""
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

    @property
    def held(self) -> int:
        """Requests waiting now, at the gate or for the end of `hold`."""
        return len(self._held_since) + self.gate.held

    @property
    def oldest_held_s(self) -> float | None:
        """How long the first of them has waited; None when none waits."""
        first = next(iter(self._held_since.values()), None)
        since_held = None if first is None else time.monotonic() - first
        return max((wait for wait in (since_held, self.gate.oldest_held_s) if wait is not None), default=None)

    @property
    def admitted_total(self) -> int:
        """Requests that the gate has let in."""
        return self.gate.tally.admitted_total

    @property
    def refused_total(self) -> int:
        """Requests for inference that were turned away, by the gate or because no engine answers."""
        return sum(self.refused_by_reason.values())

    @property
    def refused_by_reason(self) -> dict[str, int]:
        return self.gate.tally.refused_by_reason

    def attach(self, app: AsgiApp) -> None:
        """Give requests to `app` from now on, those held first."""
        self._app = app
        self._refusing = None
        self.gate.open(app)
        self._open.set()

    def hold(self, deadline_s: float, expected_s: float | None = None) -> None:
        """Let new requests wait, each for at most `deadline_s`, until `attach` or `detach`.

        `expected_s`: how long that took before, by which those who wait in vain are told when to come back.

        Reads go on, answered by the app that is attached, whether or not its engine still runs: a node whose health
        was an error now would be taken out of its balancer, for requests that wait here and will be answered.
        """
        self._hold_deadline_s = deadline_s
        self._hold_expected_s, self._hold_began = expected_s, time.monotonic()
        self.held_total = 0
        self._open.clear()

    def let_go(self) -> None:
        """End `hold` with the app that was there before."""
        self._open.set()

    def refuse(self, why: Unavailable) -> None:
        """Drain: refuse new requests, those held too; let those in flight and all reads through."""
        self._refusing = why
        self.gate.close(why)
        self._open.set()

    def detach(self, why: Unavailable) -> None:
        """No engine: answer everything with 503 and `why`."""
        self._app = None
        self._refusing = None
        self._why = why
        self.gate.close(why)
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
        path = inference_path(scope)
        if path is None or self._app is None or self._refusing is not None:
            request = HeldRequest(receive)
            try:
                await self._hand_over(scope, request, send, None, path is not None)
            finally:
                request.drop()
            return
        entered = await self.gate.enter(path, scope, receive)
        if isinstance(entered, Passage):
            try:
                await self._hand_over(scope, entered.held, send, entered, True)
            finally:
                entered.leave()
        elif entered is not None:
            await _answer_refusal(scope, send, entered)

    async def _hand_over(
        self, scope: Scope, request: HeldRequest, send: Send, passage: Passage | None, is_inference: bool
    ) -> None:
        """To the app that serves when no switch holds it up any more, or tell why it goes to none."""
        is_read = scope["type"] == "http" and scope["method"] in ("GET", "HEAD", "OPTIONS")
        while True:
            if not self._open.is_set() and not is_read and not await self._hold_until_open(request):
                return
            app = self._app
            why: Turned | None = None
            if app is None:
                why = self._why
            elif not is_read:
                why = self._refusing if self._open.is_set() else self._held_too_long()
            if why is not None or passage is None or self.gate.is_prepared(passage):
                break
            # Another engine serves than the one that it was prepared for; and another yet may, once it is for this one.
            if (why := await self.gate.prepare_again(passage)) is not None:
                break
        if why is not None:
            if is_inference:
                self.gate.tally.refused(reason_of(why), None if passage is None else passage.class_name)
            if scope["type"] == "websocket" and passage is None:
                await request.replay()  # the connect, which has to be taken before it can be answered
            await _answer_refusal(scope, send, why)
        elif app is not None and is_read:
            await app(scope, request.replay, send)
        elif app is not None:
            await self._answer(app, scope, request.replay, send, passage)

    def _held_too_long(self) -> Unavailable:
        text = "The server is changing its profile and this request waited too long."
        if self._hold_expected_s is None:
            return Unavailable("switching", text, come_back.where_unknown_s(self._hold_deadline_s))
        return Unavailable("switching", text, self._hold_expected_s, began=self._hold_began)

    async def _answer(self, app: AsgiApp, scope: Scope, receive: Receive, send: Send, passage: Passage | None) -> None:
        key = id(app)
        self.inflight += 1
        self._inflight_by_app[key] = self._inflight_by_app.get(key, 0) + 1
        self._idle.clear()
        watched = WATCHED.get(scope.get("path", ""))
        stream = watched(send) if watched is not None else None
        try:
            handler = app if passage is None else self.gate.answering(passage, app)
            await handler(scope, receive, send if stream is None else stream.send)
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

    async def _hold_until_open(self, request: HeldRequest) -> bool:
        """Wait for the end of `hold`; False: the client has hung up."""
        ticket = next(self._tickets)
        self._held_since[ticket] = time.monotonic()
        self.held_total += 1
        try:
            return await request.until(self._open, self._hold_deadline_s)
        finally:
            del self._held_since[ticket]


async def _answer_refusal(scope: Scope, send: Send, why: Turned) -> None:
    kind = "http.response"
    if scope["type"] == "websocket":
        kind = "websocket.http.response"
        if kind not in scope.get("extensions", {}):  # a server that can only close it, which its client sees as a 403
            await send({"type": "websocket.close", "code": 1013, "reason": why.message})
            return
    body, headers, status = _refusal_parts(why)
    headers.append((b"content-length", str(len(body)).encode()))
    await send({"type": f"{kind}.start", "status": status, "headers": headers})
    await send({"type": f"{kind}.body", "body": body})


def _refusal_parts(why: Turned) -> tuple[bytes, list[tuple[bytes, bytes]], int]:
    if isinstance(why, Refusal):
        return why.body(), why.headers(), why.status
    return unavailable_body(why), [(k.encode(), v.encode()) for k, v in unavailable_headers(why).items()], 503
