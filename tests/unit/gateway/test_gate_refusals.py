"""Pause, drain and minimum class, and what the refused are told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine_host.engine.port import AsgiApp
from engine_host.gateway.asked import Asked
from engine_host.gateway.refusals import Refusal
from engine_host.gateway.unavailable import Unavailable
from engine_host.profiles.throttle_table import Throttle
from engine_host.throttle.limits import Limits
from tests.unit.gateway.clients import BY_HEADER, Client, Served, of_class, turns


async def test_a_pause_holds_everything_and_its_end_lets_the_higher_classes_go_first() -> None:
    served = Served(Limits(paused=True, hold_deadline_s=300), BY_HEADER)
    await of_class(served, "low", "low")
    served.clock.now += 1
    await of_class(served, "high", "high")
    served.clock.now += 200  # no class has starved for another: none could go
    served.gate.apply(Limits(max_inflight=1))
    await turns()
    assert served.model.names == ["high"]


async def test_a_drain_refuses_with_503_also_those_who_wait_and_lets_those_in_flight_end() -> None:
    served = Served(Limits(max_inflight=1))
    running, waits = await served.ask("a"), await served.ask("b")
    served.gate.apply(Limits(max_inflight=1, draining=True, opens_in_s=40.0))
    served.clock.now += 10.5
    late = await served.ask("c")
    for client, retry_after in ((waits, 40), (late, 30)):
        assert (await client.answered()).status == 503
        assert client.told["state"] == "draining" and client.told["error"]["type"] == "service_unavailable"
        assert client.retry_after == retry_after
    assert served.model.running == 1
    served.model.finish_all()
    assert (await running.answered()).status == 200
    assert served.gate.counts().refused_by_reason == {"draining": 2}


async def test_below_the_minimum_class_a_request_is_refused_by_name() -> None:
    served = Served(Limits(min_class="high"), BY_HEADER)
    low = await of_class(served, "l", "low")
    assert (low.status, low.told["reason"], low.retry_after) == (429, "class", 30)
    assert "is not known; send it again in 30 s" in low.told["error"]["message"]
    assert "class high and above" in low.told["error"]["message"] and "low" in low.told["error"]["message"]
    await of_class(served, "h", "high")
    assert served.model.names == ["h"]


async def test_who_waits_keeps_its_class_by_its_name_when_the_classes_change() -> None:
    served = Served(Limits(max_inflight=1), BY_HEADER)
    await served.ask("first")
    for class_name in ("low", "normal", "high"):
        await of_class(served, class_name, class_name)
    served.gate.set_classes(Throttle(classes=["high", "low"], default_class="high", class_header="x-class"))
    for _ in range(4):
        await served.finish()
    assert served.model.names == ["first", "low", "normal", "high"]


async def test_classes_that_change_while_a_request_is_prepared_are_the_ones_it_is_judged_by() -> None:
    served = Served(table=BY_HEADER)

    async def prepare(app: AsgiApp, asked: Asked) -> Asked | Refusal:
        served.gate.set_classes(Throttle(classes=["only"]))
        return asked

    served.gate.prepare = prepare
    await of_class(served, "h", "high")
    assert served.model.names == ["h"]
    assert [(of.name, of.admitted_total) for of in served.gate.counts().classes] == [("only", 1)]


async def test_a_rates_retry_after_is_when_the_bucket_has_served_all_before_it() -> None:
    served = Served(Limits(request_rate=0.5, request_burst=1, hold_queue=2))
    for name in "abc":
        await served.ask(name)
    refused = await served.ask("d")
    assert refused.told["retry_after_s"] == pytest.approx(6.0)  # two wait before it, one each two seconds
    assert refused.retry_after == 6
    assert "0.5 requests a second" in refused.told["error"]["message"]
    assert "again in 6 s" in refused.told["error"]["message"]


async def test_a_caps_retry_after_comes_from_the_pace_of_admissions_and_the_queue() -> None:
    served = Served(Limits(max_inflight=1, hold_queue=3))
    unknown = await served.ask("a")
    del unknown
    for name in "bcd":
        await served.ask(name)
    first = await served.ask("x")
    assert first.retry_after == 30, "one admission tells no pace, and nothing has been answered"
    for _ in range(3):
        served.clock.now += 4.0
        await served.finish()
    for name in "efg":
        await served.ask(name)
    refused = await served.ask("y")
    assert refused.told["retry_after_s"] == pytest.approx(16.0)  # four places at one each four seconds
    served.clock.now += 12.0
    assert (await served.ask("z")).told["retry_after_s"] == pytest.approx(32.0), "nobody was admitted meanwhile"


async def _pressed(served: Served) -> None:
    """One at a time goes in, each four seconds; three wait."""
    for name in "abcd":
        await served.ask(name)
    for name in "efg":
        served.clock.now += 4.0
        await served.finish()
        await served.ask(name)


async def test_what_lay_idle_is_not_in_the_pace_that_a_retry_after_is_made_of() -> None:
    limits = Limits(max_inflight=1, hold_queue=3, hold_deadline_s=86_400.0)
    served = Served(limits)
    await _pressed(served)
    assert (await served.ask("x")).told["retry_after_s"] == pytest.approx(16.0)
    served.gate.apply(replace(limits, paused=True))
    served.clock.now += 3_600.0
    served.gate.apply(limits)
    assert (await served.ask("y")).retry_after == 60 + 3 * 4, "no pace yet, and an answer that is late by an hour"
    served.clock.now += 4.0
    await served.finish()
    await served.ask("h")
    assert (await served.ask("z")).told["retry_after_s"] == pytest.approx(16.0), "not the hours of the pause"


async def test_nor_is_the_time_without_an_engine() -> None:
    served = Served(Limits(max_inflight=1, hold_queue=3, hold_deadline_s=86_400.0))
    await _pressed(served)
    served.entry.detach(Unavailable("dead", "The engine died."))
    served.clock.now += 3_600.0
    served.model.finish_all()
    await turns()
    served.entry.attach(served.model)
    await _pressed(served)
    assert (await served.ask("x")).told["retry_after_s"] == pytest.approx(16.0)


async def test_a_pauses_retry_after_is_its_end_where_it_has_one() -> None:
    served = Served(Limits(paused=True, hold_queue=0, opens_in_s=90.0))
    served.clock.now += 30.9
    refused = await served.ask()
    assert refused.retry_after == 60 and "it is paused" in refused.told["error"]["message"]
    served.gate.apply(Limits(paused=True, hold_queue=0))
    unknown = await served.ask()
    assert unknown.retry_after == 30 and "is not known" in unknown.told["error"]["message"]
    served.gate.apply(Limits(draining=True, hold_deadline_s=5.0))
    assert (await served.ask()).retry_after == 5


async def test_behind_long_answers_it_is_when_they_will_probably_have_ended() -> None:
    served = Served(Limits(max_inflight=2, hold_queue=1, hold_deadline_s=10.0))
    for took_s in (20.0, 40.0):
        await served.ask("before")
        served.clock.now += took_s
        await served.finish()
    for name in "ab":
        await served.ask(name)
        served.clock.now += 12.0
    held = await served.ask("held")  # of a and b, 24 and 12 s old: one of two took longer than 24 s, both than 12
    full = await served.ask("full")
    assert (full.told["reason"], full.told["retry_after_s"]) == ("queue_full", pytest.approx(30.0 - 12.0))
    served.clock.now += 9.0
    assert (await served.ask("later")).told["retry_after_s"] == pytest.approx(40.0 - 21.0), "it is not stuck at 18 s"
    await served.pass_time(1.5)
    assert (held.told["reason"], held.told["retry_after_s"]) == ("deadline", pytest.approx(40.0 - 34.5))


async def test_a_limit_that_is_raised_or_ends_by_itself_is_waited_for_no_longer_than_that() -> None:
    later = ((20.0, Limits(max_inflight=1)), (90.0, Limits()))
    served = Served(Limits(max_inflight=1, hold_queue=0, later=later))
    await served.ask("a")
    served.clock.now += 30.5
    assert (await served.ask("b")).retry_after == 60, "its end, since nothing has been answered"
    rate = Limits(request_rate=0.01, request_burst=1, hold_queue=0)
    served = Served(replace(rate, later=((8.0, replace(rate, request_rate=1.0)),)))
    await served.ask("a")
    assert (await served.ask("b")).retry_after == 8


async def test_a_class_below_the_minimum_is_told_when_that_comes_down_to_it() -> None:
    later = ((40.0, Limits(min_class="normal")), (70.0, Limits()))
    served = Served(Limits(min_class="high", later=later), BY_HEADER)
    served.clock.now += 10.0
    assert [(await of_class(served, "x", name)).retry_after for name in ("low", "normal")] == [60, 30]


@pytest.mark.parametrize("reason", ["deadline", "queue_full", "shed", "class", "draining"])
async def test_every_refusal_says_when_to_come_back(reason: str) -> None:
    limits = Limits(max_inflight=1, hold_queue=1, hold_deadline_s=20.0)
    served = Served(limits, BY_HEADER)
    await of_class(served, "runs", "normal")
    client = await of_class(served, "waits", "low")
    if reason == "deadline":
        await served.pass_time(20.0)
    elif reason == "queue_full":
        client = await of_class(served, "late", "low")
    elif reason == "shed":
        await of_class(served, "higher", "high")
    elif reason == "class":
        served.gate.apply(replace(limits, min_class="high"))
    else:
        served.gate.apply(replace(limits, draining=True))
    await client.answered()
    assert client.told.get("reason") or client.told["state"] == reason
    assert client.retry_after == 20 == client.told["retry_after_s"]


async def test_a_retry_after_is_at_least_a_second() -> None:
    served = Served(Limits(request_rate=50.0, request_burst=1, hold_queue=0))
    await served.ask("a")
    assert (await served.ask("b")).retry_after == 1


async def test_a_refusal_has_openais_shape() -> None:
    served = Served(Limits(max_inflight=1, hold_queue=0))
    await served.ask("a")
    refused = await served.ask("b")
    assert set(refused.told["error"]) == {"message", "type", "param", "code"}
    assert (refused.told["error"]["type"], refused.told["error"]["code"]) == ("rate_limit_error", 429)
    assert refused.headers["content-type"] == "application/json"
    assert int(refused.headers["content-length"]) == len(refused.sent[-1]["body"])


async def test_a_websocket_is_refused_like_a_request_where_the_server_can_do_so() -> None:
    served = Served(Limits(request_rate=0.1, request_burst=1, hold_queue=0))
    await served.ask("a")
    client = Client(served.entry, path="/v1/realtime", kind="websocket")
    client.scope["extensions"] = {"websocket.http.response": {}}
    await client.start().answered()
    assert [message["type"] for message in client.sent] == [
        "websocket.http.response.start",
        "websocket.http.response.body",
    ]
    assert (client.status, client.retry_after, client.told["reason"]) == (429, 10, "queue_full")
