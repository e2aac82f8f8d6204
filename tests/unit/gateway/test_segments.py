"""A request answered in windows: one answer of them all, streamed or not, and what ends it early."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from engine_host.engine.port import Receive, Scope, Send
from engine_host.gateway.segments import segmented
from tests.unit.gateway.scripted_app import Client, Json, ScriptedApp

HEADERS = [(b"x-vllm-console-segmented", b"windows=3; overlap=4")]


def completions(**request: Any) -> list[Json]:
    return [{"model": "m", "prompt": text, **request} for text in ("one", "two", "six")]


def chats(**request: Any) -> list[Json]:
    return [{"messages": [{"role": "user", "content": text}], **request} for text in ("one", "two", "six")]


async def answered(requests: list[Json], app: ScriptedApp | None = None, client: Client | None = None) -> Client:
    client = client or Client(b"what the client has sent")
    scope = {
        "type": "http",
        "headers": [(b"content-length", b"24"), (b"x-request-id", b"r")],
        "path": "/v1",
        "state": {},
    }
    await segmented(app or ScriptedApp(), requests, HEADERS)(scope, client.receive, client.send)
    return client


async def test_stream_options_that_are_none_are_for_vllm_to_refuse() -> None:
    asked: list[Json] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        asked.append(json.loads((await receive())["body"]))
        await send({"type": "http.response.start", "status": 400, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"{}"})

    client = Client(b"")
    scope = {"type": "http", "headers": [], "path": "/v1"}
    await segmented(app, completions(stream=True, stream_options="all"), HEADERS)(scope, client.receive, client.send)
    assert (client.status, client.json) == (400, {})
    assert asked == completions(stream=True, stream_options="all")[:1]


async def test_the_answers_are_joined_under_the_first_ones_id() -> None:
    app = ScriptedApp()
    client = await answered(completions(), app)
    assert client.status == 200 and client.headers["x-vllm-console-segmented"] == "windows=3; overlap=4"
    answer = client.json
    assert answer["id"] == "id-0" and answer["created"] == 100
    (choice,) = answer["choices"]
    assert choice["text"] == "answer 0\n\nanswer 1\n\nanswer 2"
    assert choice["finish_reason"] == "stop"  # the last one's; the first ended with "length"
    assert answer["usage"] == {
        "prompt_tokens": 6,
        "completion_tokens": 6,
        "total_tokens": 12,
        "prompt_tokens_details": {"cached_tokens": 3},
    }
    assert [request["prompt"] for request in app.requests] == ["one", "two", "six"]
    assert all(dict(scope["headers"])[b"x-request-id"] == b"r" for scope in app.scopes)
    assert (await answered(chats())).json["choices"][0]["message"] == {
        "role": "assistant",
        "content": "answer 0\n\nanswer 1\n\nanswer 2",
    }


def text_of(events: list[Json]) -> str:
    choices = [event["choices"][0] for event in events if event["choices"]]
    return "".join(choice.get("text") or choice.get("delta", {}).get("content") or "" for choice in choices)


@pytest.mark.parametrize("requests", [completions(stream=True), chats(stream=True)])
async def test_a_stream_goes_on_from_window_to_window(requests: list[Json]) -> None:
    client = await answered(requests)
    assert client.headers["x-vllm-console-segmented"] == "windows=3; overlap=4"
    assert client.headers["content-type"].startswith("text/event-stream")
    events = client.events
    assert text_of(events) == "answer 0\n\nanswer 1\n\nanswer 2"
    assert {(event["id"], event["created"]) for event in events} == {("id-0", 100)}
    finishes = [event["choices"][0]["finish_reason"] for event in events]
    assert finishes[-1] == "stop" and not any(finishes[:-1])
    assert not any("usage" in event for event in events)
    roles = [event["choices"][0].get("delta", {}).get("role") for event in events]
    assert sum(role is not None for role in roles) == ("messages" in requests[0])


async def test_the_usage_of_a_stream_is_told_once_at_its_end_when_asked_for() -> None:
    events = (await answered(chats(stream=True, stream_options={"include_usage": True}))).events
    assert [event["choices"] for event in events if "usage" in event] == [[]]
    assert events[-1]["usage"]["prompt_tokens"] == 21 and events[-1]["usage"]["total_tokens"] == 27


async def test_usage_in_every_event_adds_up() -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = (await answered(completions(stream=True, stream_options=options))).events
    told = [event["usage"]["prompt_tokens"] for event in events]
    assert sorted(set(told)) == [2, 4, 6] and told == sorted(told)


async def test_a_stream_is_forwarded_as_it_comes() -> None:
    app = ScriptedApp()
    client = Client(b"")
    seen: list[int] = []
    client.on_part = lambda: seen.append(len(app.requests))
    await answered(completions(stream=True), app, client)
    assert seen.count(1) >= 2 and seen.count(2) >= 2


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("at", [0, 1])
async def test_an_error_in_a_window_says_in_which(at: int, is_streamed: bool) -> None:
    app = ScriptedApp()
    app.error_at = at
    client = await answered(completions(stream=is_streamed), app)
    if is_streamed and at:
        assert client.status == 200
        error = client.events[-1]["error"]
    else:
        assert client.status == 400
        error = client.json["error"]
    assert error["message"] == f"window {at + 1} of 3: no good" and error["type"] == "BadRequestError"
    assert len(app.requests) == at + 1


async def test_a_stream_that_breaks_off_ends_with_the_error() -> None:
    app = ScriptedApp()
    app.breaks_off_at = 1
    events = (await answered(chats(stream=True), app)).events
    assert events[-1]["error"]["message"] == "window 2 of 3: engine trouble"
    assert text_of(events[:-1]) == "answer 0\n\nanswer 1"
    assert len(app.requests) == 2


async def test_a_stream_without_an_end_is_no_answer() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b'data: {"id": 1, "choices": [{"text": "a"}]}\n\n'})

    events = (await answered(completions(stream=True), app)).events  # type: ignore[arg-type]
    assert "broke off" in events[-1]["error"]["message"]


async def test_events_that_come_in_pieces_are_put_together() -> None:
    class Pieces(ScriptedApp):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            async def in_pieces(message: Any) -> None:
                body = message.get("body", b"")
                for at in range(0, len(body), 7):
                    await send({**message, "body": body[at : at + 7], "more_body": True})
                if not body:
                    await send(message)

            await super().__call__(scope, receive, in_pieces)

    assert text_of((await answered(completions(stream=True), Pieces())).events) == "answer 0\n\nanswer 1\n\nanswer 2"


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_a_client_that_hangs_up_ends_it_at_once(is_streamed: bool) -> None:
    app = ScriptedApp()
    app.go_on = asyncio.Event()
    client = Client(b"")
    answering = asyncio.create_task(answered(completions(stream=is_streamed), app, client))
    await asyncio.wait_for(app.begun.wait(), 5)
    app.begun.clear()
    app.go_on.set()
    while len(app.requests) < 2:
        await asyncio.sleep(0)
        app.go_on.clear()
    client.hang_up()
    await asyncio.wait_for(answering, 5)
    assert len(app.requests) == 2 and app.hung_up == 1
    assert not client.is_complete


async def test_an_answer_with_its_thoughts_keeps_them_apart() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        request = json.loads((await receive())["body"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        text = request["messages"][0]["content"]
        if request.get("stream"):
            deltas = [{"reasoning": f"think {text}"}, {"content": text}]
            chunks = [{"choices": [{"delta": delta, "finish_reason": None}]} for delta in deltas]
            chunks.append({"choices": [{"delta": {}, "finish_reason": "stop"}]})
            body = b"".join(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks)
        else:
            message = {"role": "assistant", "content": text, "reasoning": f"think {text}"}
            body = json.dumps({"id": 1, "created": 1, "choices": [{"message": message}]}).encode()
        await send({"type": "http.response.body", "body": body})

    whole = (await answered(chats(), app)).json["choices"][0]["message"]  # type: ignore[arg-type]
    streamed = (await answered(chats(stream=True), app)).events  # type: ignore[arg-type]
    for name in ("content", "reasoning"):
        told = "".join(event["choices"][0]["delta"].get(name, "") for event in streamed)
        assert (
            told
            == whole[name]
            == "\n\n".join(f"{'think ' * (name == 'reasoning')}{text}" for text in ("one", "two", "six"))
        )
