"""The gate behind the entry: caps, rates, and what passes however full it is."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest

from engine_host.engine.port import AsgiApp, Receive, Scope, Send
from engine_host.gateway.asked import Asked
from engine_host.gateway.refusals import Refusal
from engine_host.throttle.limits import Limits
from tests.unit.gateway.clients import Client, Served, turns


async def test_without_limits_everything_goes_in_and_is_counted() -> None:
    served = Served()
    clients = [await served.ask(str(number), n=number) for number in range(1, 4)]
    assert served.gate.inflight == 6 and served.model.running == 3
    served.model.finish_all()
    for client in clients:
        assert (await client.answered()).status == 200
    counts = served.gate.counts()
    assert (counts.inflight, counts.held, counts.admitted_total, counts.held_total) == (0, 0, 3, 0)


async def test_a_cap_counts_choices_and_lets_the_next_in_when_there_is_room_for_all_of_its_own() -> None:
    served = Served(Limits(max_inflight=4))
    await served.ask("a", n=3)
    await served.ask("b", n=2)
    last = await served.ask("c")  # would fit, but came later
    assert served.model.names == ["a"] and served.gate.held == 2
    await served.finish()
    assert served.model.names == ["a", "b", "c"] and served.gate.inflight == 3
    served.model.finish_all()
    assert (await last.answered()).status == 200


async def test_a_held_answer_is_not_begun_before_its_admission() -> None:
    served = Served(Limits(max_inflight=1))
    await served.ask("a")
    held = await served.ask("b", stream=True)
    assert held.sent == []
    await served.finish()
    assert held.sent == [] and served.model.names == ["a", "b"]
    await served.finish()
    assert (await held.answered()).status == 200


async def test_what_exceeds_the_cap_by_itself_goes_when_nothing_else_is_in_flight() -> None:
    served = Served(Limits(max_inflight=2))
    await served.ask("a")
    await served.ask("huge", n=10)
    assert served.model.names == ["a"]
    await served.finish()
    assert served.model.names == ["a", "huge"] and served.gate.inflight == 10


async def test_a_raised_cap_lets_the_waiting_go_at_once_and_a_lowered_one_ends_nothing() -> None:
    served = Served(Limits(max_inflight=1))
    clients = [await served.ask(name) for name in "abcd"]
    served.gate.apply(Limits(max_inflight=3))
    await turns()
    assert served.model.names == ["a", "b", "c"]
    served.gate.apply(Limits(max_inflight=1))
    await turns()
    assert served.model.running == 3
    await served.finish()
    await served.finish()
    assert served.model.names == ["a", "b", "c"] and served.gate.held == 1
    served.gate.apply(Limits())
    await turns()
    assert served.model.names == ["a", "b", "c", "d"]
    served.model.finish_all()
    assert [(await client.answered()).status for client in clients] == [200] * 4


async def test_an_app_that_fails_gives_its_place_back() -> None:
    served = Served(Limits(max_inflight=1))

    async def broken(scope: Scope, receive: Receive, send: Send) -> None:
        raise RuntimeError("out of order")

    served.entry.attach(broken)
    client = await served.ask()
    with pytest.raises(RuntimeError, match="out of order"):
        await client.answered()
    assert served.gate.inflight == 0


async def test_a_rate_lets_a_burst_through_and_then_one_after_the_other() -> None:
    served = Served(Limits(request_rate=2.0, request_burst=3))
    for name in "abcdef":
        await served.ask(name)
    assert served.model.names == list("abc")
    await served.pass_time(0.4)
    assert served.model.names == list("abc")
    await served.pass_time(0.1)
    assert served.model.names == list("abcd")
    await served.pass_time(1.0)
    assert served.model.names == list("abcdef")


async def test_a_rate_comes_back_to_the_waiting_by_itself() -> None:
    served = Served(clock=time.monotonic)
    served.gate.apply(Limits(request_rate=100.0, request_burst=1))
    clients = [await served.ask(str(number)) for number in range(5)]
    async with asyncio.timeout(10):
        while served.model.running < 5:
            await asyncio.sleep(0.005)
    served.model.finish_all()
    for client in clients:
        await client.answered()
    assert served.gate.counts().hold_wait["1m"].n == 4


class Counted:
    """Says what each prompt has, by the body's `tokens`."""

    def __init__(self) -> None:
        self.wanted: list[bool] = []

    async def __call__(self, app: AsgiApp, asked: Asked) -> Asked | Refusal:
        await asyncio.sleep(0)
        self.wanted.append(asked.wants_prompt_tokens)
        marker = asked.body.partition(b'"tokens": ')[2].partition(b"}")[0]
        return replace(asked, prompt_tokens=int(marker)) if marker else asked


async def test_prompt_tokens_are_paced_and_a_prompt_beyond_the_burst_goes_on_a_full_bucket_and_is_owed() -> None:
    served = Served()
    served.gate.prepare = counted = Counted()
    await served.ask("free", tokens=10**9)
    served.gate.apply(Limits(prompt_token_rate=100.0, prompt_token_burst=200))
    await served.ask("large", tokens=1_000)
    await served.ask("small", tokens=10)
    assert served.model.names == ["free", "large"]
    await served.pass_time(8.0)
    assert served.model.names == ["free", "large"], "the large one's debt is 800 tokens"
    await served.pass_time(0.1)
    assert served.model.names == ["free", "large", "small"]
    assert counted.wanted == [False, True, True]


async def test_what_is_cheap_passes_however_full_and_paused_the_gate_is() -> None:
    served = Served(Limits(max_inflight=1, paused=True))
    await served.ask("held")
    tokenize = await served.ask("tokenize", path="/tokenize")
    probe = Client(served.entry, path="/health", method="GET").start()
    await turns()
    assert served.model.running == 2 and served.gate.counts().admitted_total == 0
    served.model.finish_all()
    await tokenize.answered()
    await probe.answered()


@pytest.mark.parametrize("limits", [Limits(), Limits(paused=True), Limits(draining=True)])
@pytest.mark.parametrize("field", [b"user", b"prompt"])
async def test_what_is_nested_too_deeply_is_refused_in_openais_shape(limits: Limits, field: bytes) -> None:
    served = Served(limits)
    deep = b'{"' + field + b'": ' + b"[" * 3_000 + b"]" * 3_000 + b"}"
    client = await Client(served.entry, deep).start().answered()
    assert client.status == 400 and client.headers["content-type"] == "application/json"
    assert client.told["error"]["type"] == "invalid_request_error" and "too deeply" in client.told["error"]["message"]
    assert served.gate.counts().refused_by_reason == {"too_deep": 1} and served.model.bodies == []


async def test_however_deep_a_body_is_nested_it_is_answered_or_refused() -> None:
    served = Served()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    served.entry.attach(app)
    seen = set()
    for depth in range(900, 1_010):
        deep = b'{"prompt": ' + b"[" * depth + b"]" * depth + b"}"
        seen.add((await Client(served.entry, deep).start().answered()).status)
    assert seen == {200, 400}


@pytest.mark.parametrize("limits", [Limits(paused=True), Limits(max_inflight=1), Limits(draining=True)])
async def test_malformed_json_goes_to_vllm_which_says_so_itself(limits: Limits) -> None:
    served = Served(limits)
    client = await Client(served.entry, b'{"user": ').start().answered()
    assert client.status == 400 and served.model.bodies == [b'{"user": ']
    assert served.gate.counts().admitted_total == 0


async def test_tokens_pass_through_nothing_of_ours() -> None:
    served = Served(Limits(max_inflight=1))
    given: list[Send] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        given.append(send)

    served.entry.attach(app)
    client = await (await served.ask()).answered()
    assert given == [client._send]


async def test_a_body_in_parts_arrives_whole() -> None:
    served = Served()
    client = Client(served.entry, b"")
    client.messages.get_nowait()
    for part, more in ((b'{"us', True), (b'er": "parts"', True), (b"}", False)):
        client.messages.put_nowait({"type": "http.request", "body": part, "more_body": more})
    client.start()
    await turns()
    assert served.model.names == ["parts"]


async def test_a_websocket_takes_a_place_for_as_long_as_it_is_open_and_is_closed_when_it_may_not_wait() -> None:
    served = Served(Limits(max_inflight=1, hold_queue=1))
    opened, closing = asyncio.Event(), asyncio.Event()

    async def socket(scope: Scope, receive: Receive, send: Send) -> None:
        assert (await receive())["type"] == "websocket.connect"
        opened.set()
        await closing.wait()

    served.entry.attach(socket)
    first = await served.ask(path="/v1/realtime", kind="websocket")
    assert opened.is_set() and served.gate.inflight == 1
    waits = await served.ask(path="/v1/realtime", kind="websocket")
    refused = await served.ask(path="/v1/realtime", kind="websocket")
    assert refused.sent[0]["type"] == "websocket.close" and refused.sent[0]["code"] == 1013
    assert "1 of 1 answers under way" in str(refused.sent[0]["reason"])
    waits.hang_up()
    await waits.answered()
    closing.set()
    await first.answered()
    assert served.gate.inflight == 0


async def test_what_prepares_a_request_may_refuse_change_or_answer_it() -> None:
    served = Served()
    asked_by: list[Asked] = []

    async def prepare(app: AsgiApp, asked: Asked) -> Asked | Refusal:
        asked_by.append(asked)
        if b"refuse" in asked.body:
            return Refusal("too_long", "5000 tokens, and 2048 fit.", 400, "invalid_request_error", "prompt", "length")
        if b"cut" in asked.body:
            return replace(asked, body=b'{"user": "shorter"}', is_truncated=True)

        async def windows(scope: Scope, receive: Receive, send: Send) -> None:
            await send({"type": "http.response.start", "status": 299, "headers": []})

        return replace(asked, segments=3, through=lambda serving: windows)

    served.gate.prepare = prepare
    refused = await served.ask("refuse")
    error = refused.told["error"]
    assert (refused.status, error["type"], error["param"], error["code"]) == (
        400,
        "invalid_request_error",
        "prompt",
        "length",
    )
    assert refused.retry_after is None
    await served.ask("cut")
    assert served.model.names == ["shorter"]
    assert (await served.ask("windows")).status == 299
    counts = served.gate.counts()
    assert (counts.truncated_total, counts.segmented_total, counts.refused_by_reason) == (1, 1, {"too_long": 1})
    assert asked_by[0].path == "/v1/completions" and asked_by[0].class_name == "normal"


async def test_a_mistake_in_preparing_lets_the_request_go_as_it_came(caplog: pytest.LogCaptureFixture) -> None:
    served = Served()

    async def prepare(app: AsgiApp, asked: Asked) -> Asked | Refusal:
        raise ZeroDivisionError

    served.gate.prepare = prepare
    await served.ask("as it came")
    assert served.model.names == ["as it came"] and "goes on as it came" in caplog.text
