"""The ASGI entry: who answers, in which state, and what is counted."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest

from engine_host.engine.port import Receive, Scope, Send
from engine_host.gateway.entry import Entry
from engine_host.gateway.unavailable import Unavailable

POST = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": []}
GET = {"type": "http", "method": "GET", "path": "/health", "headers": []}
WEBSOCKET = {"type": "websocket", "path": "/v1/realtime", "headers": []}


class Server:
    """What a server gives an application, and what it got from it."""

    def __init__(self, scope: dict[str, Any]) -> None:
        self.sent: list[dict[str, Any]] = []
        self.received = 0
        self._first = {"type": "http.request", "body": b"{}"}
        if scope["type"] == "websocket":
            self._first = {"type": "websocket.connect"}

    async def receive(self) -> dict[str, Any]:
        self.received += 1
        if self.received > 1:
            await asyncio.Event().wait()  # the client stays and says no more
        return self._first

    async def send(self, message: Any) -> None:
        self.sent.append(message)


async def ask(entry: Entry, scope: dict[str, Any]) -> list[dict[str, Any]]:
    server = Server(scope)
    await entry(scope, server.receive, server.send)
    return server.sent


async def turns(count: int) -> None:
    """Of the event loop, for whatever is ready to run."""
    for _ in range(count):
        await asyncio.sleep(0)


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "answered"})


async def test_an_attached_app_answers_and_a_detached_one_no_longer() -> None:
    entry = Entry()
    entry.attach(app)
    assert await ask(entry, POST) == [{"type": "answered"}]
    entry.detach(Unavailable("dead", "The engine died.", 4.6))
    for scope in (POST, GET):
        start, body = await ask(entry, scope)
        assert start["status"] == 503
        assert dict(start["headers"])[b"retry-after"] == b"5"
        told = json.loads(body["body"])
        assert (told["state"], told["error"]["message"]) == ("dead", "The engine died.")
    assert (entry.admitted_total, entry.refused_total, entry.refused_by_reason) == (1, 1, {"dead": 1})


async def test_where_nothing_is_known_a_stated_time_to_retry_is_given() -> None:
    entry = Entry()
    start, body = await ask(entry, POST)
    assert dict(start["headers"])[b"retry-after"] == b"30" and json.loads(body["body"])["retry_after_s"] == 30.0


async def test_a_refusal_lets_reads_through_and_ends_with_the_next_engine() -> None:
    entry = Entry()
    entry.attach(app)
    entry.refuse(Unavailable("draining", "The engine is being stopped."))
    assert await ask(entry, GET) == [{"type": "answered"}]
    assert (await ask(entry, POST))[0]["status"] == 503
    entry.attach(app)
    assert await ask(entry, POST) == [{"type": "answered"}]


@pytest.mark.parametrize("is_draining", [True, False])
async def test_a_websocket_is_turned_away_with_the_reason(is_draining: bool) -> None:
    entry, server = Entry(), Server(WEBSOCKET)
    why = Unavailable("draining", "The engine is being stopped.")
    if is_draining:
        entry.attach(app)
        entry.refuse(why)
    else:
        entry.detach(why)
    await entry(WEBSOCKET, server.receive, server.send)
    assert server.sent == [{"type": "websocket.close", "code": 1013, "reason": "The engine is being stopped."}]
    assert server.received == 1  # the connect has to be taken before it can be answered
    assert entry.refused_total == 1


async def test_a_request_in_flight_outlives_the_detachment_of_its_app_and_is_waited_for() -> None:
    entry, may_end = Entry(), asyncio.Event()

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        await may_end.wait()
        await send({"type": "answered late"})

    entry.attach(slow)
    asking = asyncio.create_task(ask(entry, POST))
    await asyncio.sleep(0)
    assert entry.inflight == 1
    entry.detach(Unavailable("dead", "The engine died."))
    idle = asyncio.create_task(entry.wait_idle())
    await asyncio.sleep(0)
    assert not idle.done()
    may_end.set()
    assert await asking == [{"type": "answered late"}]
    await asyncio.wait_for(idle, 5)
    assert entry.inflight == 0


async def test_a_request_that_fails_is_no_longer_in_flight() -> None:
    entry = Entry()

    async def broken(scope: Scope, receive: Receive, send: Send) -> None:
        raise RuntimeError

    entry.attach(broken)
    with pytest.raises(RuntimeError):
        await ask(entry, POST)
    await asyncio.wait_for(entry.wait_idle(), 5)
    assert entry.inflight == 0


class EndedError(Exception):
    http_status = 503


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (EndedError("An operator ended this request."), 503, "An operator ended this request."),
        (KeyError("inside"), 500, "The server could not finish this answer."),
    ],
)
async def test_a_stream_of_the_responses_api_that_fails_ends_with_an_error_event(
    error: Exception, code: int, text: str
) -> None:
    async def breaks(scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"Content-Type", b"text/event-stream; charset=utf-8")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"event: response.created\n\n", "more_body": True})
        raise RuntimeError("Caught handled exception, but response already started.") from error

    entry = Entry()
    entry.attach(breaks)
    *_, last = await ask(entry, {**POST, "path": "/v1/responses"})
    kind, data = last["body"].decode().removesuffix("\n\n").split("\n")
    assert kind == "event: error"
    event = json.loads(data.removeprefix("data: "))
    assert (event["type"], event["message"], event["sequence_number"]) == ("error", text, 1)
    assert (event["error"]["message"], event["error"]["code"]) == (text, code)
    assert not last.get("more_body", False)
    assert entry.inflight == 0


async def test_a_stream_of_the_messages_api_that_fails_does_not_tell_of_what_is_missing_in_its_error() -> None:
    piece = b'event: content_block_delta\ndata: {"type":"content_block_delta"}\n\n'
    fault = (
        b'event: error\ndata: {"type":"error","error":{"type":"internal_error","message":"2 validation errors for '
        b'ChatCompletionStreamResponse\\nmodel\\n  Field required"}}\n\n'
    )

    async def tells(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for body in (piece, fault):
            await send({"type": "http.response.body", "body": body, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    entry = Entry()
    entry.attach(tells)
    _, first, second, last = await ask(entry, {**POST, "path": "/v1/messages"})
    assert (first["body"], last["body"]) == (piece, b"")
    event = json.loads(second["body"].decode().removeprefix("event: error\ndata: "))
    assert event == {
        "type": "error",
        "error": {"type": "api_error", "message": "The server could not finish this answer."},
    }
    assert second["more_body"]


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages", "/v1/completions"])
async def test_what_fails_before_or_after_its_stream_is_the_servers_to_answer(path: str) -> None:
    async def breaks(scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 500, "headers": headers})
        await send({"type": "http.response.body", "body": b"{}"})
        raise KeyError("inside")

    entry = Entry()
    entry.attach(breaks)
    with pytest.raises(KeyError):
        await ask(entry, {**POST, "path": path})


async def test_who_waits_at_the_gate_also_waits_for_a_switch_that_follows_at_once() -> None:
    entry = Entry()
    entry.attach(app)
    entry.hold(30.0)
    waits = asyncio.create_task(ask(entry, POST))
    await turns(20)
    assert entry.held == 1
    entry.attach(app)
    entry.hold(30.0)
    await turns(20)
    assert entry.held == 1 and not waits.done()
    entry.attach(app)
    assert await waits == [{"type": "answered"}]


READS = [{**GET, "path": path} for path in ("/health", "/metrics", "/v1/models", "/version")]
READS.append({**GET, "method": "HEAD"})


@pytest.mark.parametrize("scope", READS, ids=lambda scope: scope["method"] + scope["path"])
async def test_reads_go_on_while_a_switch_holds_requests(scope: dict[str, Any]) -> None:
    entry = Entry()
    entry.attach(app)
    entry.hold(0.01)
    assert await ask(entry, scope) == [{"type": "answered"}]
    start, body = await ask(entry, POST)
    assert start["status"] == 503 and "waited too long" in json.loads(body["body"])["error"]["message"]
    entry.detach(Unavailable("dead", "The engine died."))
    assert (await ask(entry, scope))[0]["status"] == 503, "what waited will not be served any more"


async def test_the_oldest_wait_at_the_gate_is_told_until_its_client_leaves() -> None:
    entry = Entry()
    entry.attach(app)
    assert entry.oldest_held_s is None
    entry.hold(30.0)
    first = asyncio.create_task(ask(entry, POST))
    await turns(20)
    after_first = time.monotonic()
    second = asyncio.create_task(ask(entry, POST))
    await turns(20)
    assert entry.held == 2
    assert entry.oldest_held_s is not None and entry.oldest_held_s >= time.monotonic() - after_first
    first.cancel()
    await asyncio.wait({first})
    assert entry.held == 1 and entry.oldest_held_s <= time.monotonic() - after_first
    entry.attach(app)
    await second
    assert (entry.held, entry.oldest_held_s) == (0, None)
