"""Who waits at the gate: in which order they go, who has to leave, who hangs up."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest

from engine_host.engine.port import AsgiApp, Receive, Scope, Send
from engine_host.gateway.asked import Asked
from engine_host.throttle.limits import Limits
from tests.unit.gateway.clients import BY_HEADER, Client, Served, of_class, turns, until


async def test_higher_classes_go_first_and_within_one_who_came_first() -> None:
    served = Served(Limits(max_inflight=1), BY_HEADER)
    await served.ask("first")
    for name, class_name in [("l1", "low"), ("n1", "normal"), ("h1", "high"), ("n2", "normal"), ("h2", "high")]:
        await of_class(served, name, class_name)
    await served.ask("p", priority=-1)  # vLLM's field: one above normal
    for _ in range(7):
        await served.finish()
    assert served.model.names == ["first", "h1", "h2", "p", "n1", "n2", "l1"]


async def test_a_full_queue_sheds_the_youngest_of_the_lowest_class_for_a_higher_one_and_refuses_an_equal_one() -> None:
    served = Served(Limits(max_inflight=1, hold_queue=2), BY_HEADER)
    await served.ask("first")
    older, younger = await of_class(served, "l1", "low"), await of_class(served, "l2", "low")
    equal = await of_class(served, "l3", "low")
    assert (equal.status, equal.told["reason"]) == (429, "queue_full")
    await of_class(served, "h1", "high")
    assert (younger.status, younger.told["reason"]) == (429, "shed")
    assert not older.is_done
    lower_than_all = await of_class(served, "l4", "low")
    assert lower_than_all.told["reason"] == "queue_full"
    counts = served.gate.counts()
    assert counts.refused_by_reason == {"queue_full": 2, "shed": 1} and counts.refused_total == 3
    assert [(of.name, of.held, of.admitted_total, of.refused_total) for of in counts.classes] == [
        ("low", 1, 0, 3),
        ("normal", 0, 1, 0),
        ("high", 1, 0, 0),
    ]


@pytest.mark.parametrize("hold_queue", [0, 1])
async def test_who_is_refused_for_a_full_queue_is_not_prepared_first(hold_queue: int) -> None:
    """Preparing asks the tokenizer, which those who are let in need."""
    served = Served(Limits(max_inflight=1, hold_queue=hold_queue), BY_HEADER)
    prepared: list[str] = []

    async def prepare(app: AsgiApp, asked: Asked) -> Asked:
        prepared.append(asked.class_name)
        return asked

    served.gate.prepare = prepare
    for _ in range(1 + hold_queue):
        await of_class(served, "n", "normal")
    for class_name in ("low", "normal"):
        refused = await of_class(served, "refused", class_name)
        assert (refused.status, refused.told["reason"]) == (429, "queue_full")
    assert prepared == ["normal"] * (1 + hold_queue)
    assert served.gate.counts().refused_by_reason == {"queue_full": 2}
    if hold_queue:
        await of_class(served, "h", "high")
        assert prepared[-1] == "high" and served.gate.counts().refused_by_reason == {"queue_full": 2, "shed": 1}
    while served.model.running:
        await served.finish()
    await of_class(served, "late", "low")
    assert served.model.names[-1] == "late", "there is room again"


async def test_where_tokens_are_limited_it_is_since_they_tell_when_to_come_back() -> None:
    served = Served(Limits(prompt_token_rate=1.0, prompt_token_burst=10, hold_queue=0))

    async def prepare(app: AsgiApp, asked: Asked) -> Asked:
        return replace(asked, prompt_tokens=10)

    served.gate.prepare = prepare
    await served.ask("a")
    assert (await served.ask("b")).retry_after == 10


async def test_a_class_that_has_had_no_place_for_half_the_deadline_gets_the_next() -> None:
    served = Served(Limits(max_inflight=1, hold_deadline_s=30.0), BY_HEADER)
    await served.ask("first")
    await of_class(served, "low", "low")
    await of_class(served, "h1", "high")
    await of_class(served, "h2", "high")
    served.clock.now += 14.9
    await served.finish()
    served.clock.now += 0.2
    await served.finish()
    assert served.model.names == ["first", "h1", "low"]


async def test_who_may_not_wait_is_refused_at_once() -> None:
    served = Served(Limits(max_inflight=1, hold_queue=0))
    await served.ask("a")
    refused = await served.ask("b")
    assert refused.status == 429 and "none may wait" in refused.told["error"]["message"]
    await served.finish()
    await served.ask("c")
    assert served.model.names == ["a", "c"]


async def test_who_has_waited_for_the_deadline_is_refused_without_anybody_else_doing_anything() -> None:
    served = Served(clock=time.monotonic)
    served.gate.apply(Limits(max_inflight=1, hold_deadline_s=0.05))
    await served.ask("a")
    late = await (await served.ask("b")).answered()
    assert (late.status, late.told["reason"]) == (429, "deadline")
    assert "has waited for 0.05 s" in late.told["error"]["message"]
    assert served.gate.held == 0 and served.gate._line._wake is None


async def test_a_shorter_queue_a_nearer_deadline_and_a_higher_minimum_reach_those_who_wait() -> None:
    served = Served(Limits(max_inflight=1), BY_HEADER)
    await served.ask("first")
    clients = {name: await of_class(served, name, name) for name in ("low", "normal", "high")}
    served.gate.apply(Limits(max_inflight=1, min_class="normal"))
    assert (await clients["low"].answered()).told["reason"] == "class"
    served.gate.apply(Limits(max_inflight=1, hold_queue=1))
    assert (await clients["normal"].answered()).told["reason"] == "shed"
    served.clock.now += 5
    served.gate.apply(Limits(max_inflight=1, hold_deadline_s=5))
    assert (await clients["high"].answered()).told["reason"] == "deadline"


async def test_bodies_that_wait_are_kept_up_to_a_limit_and_a_single_larger_one_all_the_same() -> None:
    served = Served(Limits(max_inflight=1), held_bytes=1_000)
    await served.ask("first")
    await served.ask("large", prompt="x" * 5_000)
    refused = await served.ask("small", prompt="x" * 50)
    assert refused.told["reason"] == "queue_full" and "memory" in refused.told["error"]["message"]
    await served.finish()
    assert served.model.names == ["first", "large"] and served.gate._line.held_bytes.used == 0
    await served.ask("small again", prompt="x" * 50)
    assert served.gate.held == 1


async def test_a_body_that_is_still_coming_waits_in_the_clients_hands_once_the_memory_is_full() -> None:
    served = Served(Limits(max_inflight=1), held_bytes=1_000)
    await served.ask("first")
    client = Client(served.entry, b"", path="/v1/audio/transcriptions")
    client.messages.get_nowait()
    for _ in range(10):
        client.messages.put_nowait({"type": "http.request", "body": b"x" * 600, "more_body": True})
    client.messages.put_nowait({"type": "http.request", "body": b"end", "more_body": False})
    client.start()
    await turns()
    assert served.gate.held == 1 and client.messages.qsize() == 9
    await served.finish()
    assert served.model.bodies[1] == b"x" * 6_000 + b"end"


async def test_a_client_that_hangs_up_while_it_waits_leaves_at_once_and_nothing_is_sent() -> None:
    served = Served(Limits(max_inflight=1))
    await served.ask("a")
    gone, next_one = await served.ask("gone"), await served.ask("next")
    gone.hang_up()
    await gone.answered()
    assert gone.sent == [] and served.gate.held == 1
    await served.finish()
    assert served.model.names == ["a", "next"]
    await served.finish()
    await next_one.answered()
    counts = served.gate.counts()
    assert (counts.gone_total, counts.held_total, counts.inflight, counts.refused_total) == (1, 2, 0, 0)


async def test_the_waits_of_those_who_were_admitted_are_told_by_window() -> None:
    served = Served(Limits(max_inflight=1))
    await served.ask("a")
    await served.ask("b")
    served.clock.now += 3.0
    await served.finish()
    waits = served.gate.counts().hold_wait
    assert waits["10s"].n == 1 and waits["10s"].p50_s is not None and abs(waits["10s"].p50_s - 3.0) < 0.06
    served.clock.now += 11.0
    waits = served.gate.counts().hold_wait
    assert (waits["10s"].n, waits["1m"].n) == (0, 1)


async def test_who_leaves_the_head_of_the_queue_lets_the_next_one_go() -> None:
    served = Served(Limits(max_inflight=4))
    await served.ask("a", n=3)
    wide = await served.ask("wide", n=2)
    await served.ask("narrow")
    wide.hang_up()
    await turns()
    assert served.model.names == ["a", "narrow"]


async def test_when_the_head_of_the_queue_has_waited_too_long_the_next_one_goes() -> None:
    served = Served(Limits(max_inflight=4, hold_deadline_s=10))
    await served.ask("a", n=3)
    wide = await served.ask("wide", n=2)
    served.clock.now += 5
    await served.ask("narrow")
    await served.pass_time(5)
    assert (await wide.answered()).told["reason"] == "deadline"
    assert served.model.names == ["a", "narrow"]


async def test_a_client_that_hangs_up_just_as_it_is_admitted_gives_its_place_back() -> None:
    served = Served(Limits(max_inflight=1))
    await served.ask("a")
    both = await served.ask("both")
    both.hang_up()
    served.model.finish()
    await until(lambda: both.is_done or served.model.names == ["a", "both"])
    served.model.finish_all()
    await both.answered()
    assert served.gate.inflight == 0 and served.gate.held == 0


@pytest.mark.parametrize("turns_before", range(5))
async def test_an_app_learns_of_a_client_that_hung_up_just_as_it_was_admitted(turns_before: int) -> None:
    served = Served(Limits(paused=True))
    got: list[str] = []

    async def listening(scope: Scope, receive: Receive, send: Send) -> None:
        got.extend([(await receive())["type"], (await receive())["type"]])

    served.entry.attach(listening)
    client = await served.ask()
    client.hang_up()
    await turns(turns_before)
    served.gate.apply(Limits())
    await client.answered()
    was_admitted = served.gate.counts().admitted_total == 1
    assert got == (["http.request", "http.disconnect"] if was_admitted else [])
    assert served.gate.counts().gone_total == (not was_admitted) and served.gate.inflight == 0


async def test_a_task_that_is_cancelled_while_it_waits_or_right_after_its_admission_leaves_nothing() -> None:
    served = Served(Limits(max_inflight=1))
    await served.ask("a")
    waits, admitted = await served.ask("waits"), await served.ask("admitted")
    assert waits.task is not None and admitted.task is not None
    waits.task.cancel()
    await turns()
    served.model.finish()
    await until(lambda: served.gate.held == 0)
    admitted.task.cancel()
    await turns()
    assert (served.gate.inflight, served.gate.held, served.gate._line.held_bytes.used) == (0, 0, 0)
    assert not [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]


async def test_a_body_that_its_client_does_not_finish_takes_no_place() -> None:
    served = Served(Limits(max_inflight=1))
    client = Client(served.entry, b"")
    client.messages.get_nowait()
    client.messages.put_nowait({"type": "http.request", "body": b'{"user":', "more_body": True})
    client.start()
    await turns()
    assert served.gate.inflight == 0
    client.hang_up()
    await client.answered()
    assert client.sent == [] and served.model.seen == []


async def test_one_refusal_of_long_ago_lets_no_low_request_go_ahead_of_higher_ones() -> None:
    limits = Limits(max_inflight=1, hold_deadline_s=20.0)
    served = Served(replace(limits, hold_queue=0), BY_HEADER)
    await served.ask("long")
    assert (await of_class(served, "refused", "low")).status == 429
    served.gate.apply(limits)
    await served.pass_time(18.0)
    for name, class_name in (("l1", "low"), ("l2", "low"), ("n", "normal"), ("h", "high")):
        await of_class(served, name, class_name)
    await served.pass_time(5.0)
    for _ in range(4):
        await served.finish()
    assert served.model.names == ["long", "h", "n", "l1", "l2"]
