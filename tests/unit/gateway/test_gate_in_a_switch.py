"""The gate and the entry's other states: switches, drains and deaths of the engine."""

from __future__ import annotations

import asyncio

import pytest

from engine_host.engine.port import AsgiApp
from engine_host.gateway.asked import Asked
from engine_host.gateway.refusals import Refusal
from engine_host.gateway.unavailable import Unavailable
from engine_host.throttle.limits import Limits
from tests.unit.gateway.clients import Client, Model, Served, turns

DEAD = Unavailable("dead", "The engine died.", 4.6)


async def test_who_waits_at_the_gate_stays_through_a_switch_and_goes_to_the_new_app() -> None:
    served = Served(Limits(max_inflight=1))
    carried = await served.ask("carried")
    waits = await served.ask("waits")
    served.entry.hold(30.0)
    new = Model()
    served.entry.attach(new)
    await turns()
    assert served.gate.held == 1 and new.seen == [], "the carried answer has its place until it is done"
    await served.finish()
    assert (await carried.answered()).status == 200
    assert new.names == ["waits"]
    new.finish_all()
    assert (await waits.answered()).status == 200


async def test_whoever_is_admitted_during_a_switch_waits_for_its_end_with_its_place_taken() -> None:
    served = Served(Limits(max_inflight=1))
    served.entry.hold(30.0)
    first = await served.ask("first")
    await served.ask("second")
    assert served.gate.inflight == 1 and served.gate.held == 1 and served.entry.held == 2
    assert served.entry.inflight == 0 and served.entry.held_total == 1
    new = Model()
    served.entry.attach(new)
    await turns()
    assert new.names == ["first"] and served.entry.held == 1
    new.finish_all()
    await first.answered()
    await turns()
    assert new.names == ["first", "second"]


async def test_a_client_that_hangs_up_in_a_switch_gives_its_place_at_the_gate_back() -> None:
    served = Served(Limits(max_inflight=1))
    served.entry.hold(30.0)
    first = await served.ask("first")
    await served.ask("second")
    first.hang_up()
    await first.answered()
    await turns()
    assert served.gate.held == 0 and served.gate.inflight == 1
    served.entry.let_go()
    await turns()
    assert served.model.names == ["second"]


async def test_a_switch_that_takes_too_long_refuses_whom_it_held_and_frees_their_places() -> None:
    served = Served(Limits(max_inflight=1))
    served.entry.hold(0.02)
    held = await (await served.ask("held")).answered()
    assert held.status == 503 and held.told["state"] == "switching"
    assert held.retry_after == 1, "nothing is known of its end but the hold deadline"
    assert served.gate.inflight == 0
    assert served.gate.counts().refused_by_reason == {"switching": 1}


@pytest.mark.parametrize(("expected_s", "retry_after"), [(20.0, 20), (0.01, 1)])
async def test_who_was_held_too_long_is_told_when_earlier_switches_were_over(
    expected_s: float, retry_after: int
) -> None:
    served = Served()
    served.entry.hold(0.02, expected_s)
    held = await (await served.ask("held")).answered()
    assert held.retry_after == retry_after


async def test_when_the_engine_goes_everybody_who_waits_is_told_at_once() -> None:
    served = Served(Limits(max_inflight=1))
    running = await served.ask("running")
    waiting = [await served.ask(name) for name in "ab"]
    served.entry.detach(DEAD)
    assert served.gate._line._wake is None, "no timer for anybody"
    for client in waiting:
        assert (await client.answered()).status == 503
        assert client.told["state"] == "dead" and client.retry_after == 5
    late = await served.ask("late")
    assert late.told["state"] == "dead"
    served.model.finish_all()
    assert (await running.answered()).status == 200
    counts = served.gate.counts()
    assert counts.refused_by_reason == {"dead": 3} and (counts.inflight, counts.held) == (0, 0)
    served.entry.attach(served.model)
    await served.ask("again")
    assert served.model.names == ["running", "again"]


async def test_whoever_sends_its_body_while_the_engine_goes_is_told_and_does_not_wait() -> None:
    served = Served(Limits(max_inflight=1))
    await served.ask("running")
    slow = await served.ask("slow")  # waits; the next one is still sending
    sending = Client(served.entry, b"")
    sending.messages.get_nowait()
    sending.start()
    await turns()
    served.entry.detach(DEAD)
    await slow.answered()
    sending.messages.put_nowait({"type": "http.request", "body": b"{}"})
    assert (await sending.answered()).told["state"] == "dead"
    assert served.gate.held == 0


async def test_whoever_is_being_prepared_while_the_engine_goes_is_told_and_does_not_wait() -> None:
    served, may_go_on = Served(Limits(max_inflight=1)), asyncio.Event()

    async def prepare(app: AsgiApp, asked: Asked) -> Asked | Refusal:
        await may_go_on.wait()
        return asked

    await served.ask("running")
    served.gate.prepare = prepare
    client = await served.ask("prepared")
    served.entry.detach(DEAD)
    may_go_on.set()
    assert (await client.answered()).told["state"] == "dead"


async def test_what_is_not_throttled_waits_in_a_switch_and_leaves_no_task() -> None:
    served = Served()
    served.entry.hold(30.0)
    tokenize = await served.ask("tokenize", path="/tokenize")
    assert served.entry.held == 1 and served.gate.held == 0
    served.entry.let_go()
    await turns()
    await served.finish()
    assert (await tokenize.answered()).status == 200
    await turns()
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_drain_of_the_host_does_not_wait_for_those_at_the_gate_and_tells_them() -> None:
    served = Served(Limits(max_inflight=1))
    running, waits = await served.ask("running"), await served.ask("waits")
    served.entry.refuse(Unavailable("draining", "The server drains for a stop; try another one.", 30.0))
    assert (await waits.answered()).told["state"] == "draining"
    assert served.entry.inflight == 1
    idle = asyncio.create_task(served.entry.wait_idle())
    await turns()
    assert not idle.done()
    await served.finish()
    await running.answered()
    await asyncio.wait_for(idle, 5)
