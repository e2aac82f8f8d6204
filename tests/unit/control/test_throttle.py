"""The throttle over the control socket: roles, audit, events, compare-and-set, and what the frames may hold."""

from __future__ import annotations

import json
from typing import Any

import pytest

from engine_host.protocol.envelope import ErrorCode
from engine_host.protocol.methods import Role

from .harness import Bench, change

CHANGES: dict[str, dict[str, Any]] = {
    "throttle.set": {"limits": {"max_inflight": 16}},
    "throttle.clear": {},
    "throttle.auto": {"mode": "observe"},
    "pause": {},
    "resume": {},
}


async def test_a_limit_is_set_audited_and_told_with_its_reason_once(bench: Bench) -> None:
    client = await bench.connect(Role.OPERATOR, login="maria")
    await client.call("events.subscribe")
    order = change("k", limits={"max_inflight": 16}, for_s=600, reason="KV pressure")
    result = (await client.call("throttle.set", order))["result"]
    said = "max_inflight 64 → 16 for 10 m: KV pressure"
    limit = result["throttle"]["limits"]["max_inflight"]
    assert (result["text"], limit["value"], limit["who"]) == (said, 16, "maria")
    assert limit["until"] == pytest.approx(limit["since"] + 600)
    assert bench.host.gate.limits.max_inflight == 16
    event = await client.notified("event")
    assert (event["kind"], event["who"], event["text"]) == ("action.throttle.set", "maria", said)
    intent, outcome = bench.audit_lines()
    assert (intent["params"]["limits"], intent["params"]["for_s"]) == ({"max_inflight": 16}, 600)
    assert (outcome["outcome"], outcome["text"]) == ("applied", said)


async def test_to_clear_what_nobody_has_set_is_no_event(bench: Bench) -> None:
    client = await bench.connect(Role.OPERATOR)
    await client.call("events.subscribe")
    result = (await client.call("throttle.clear", change("a", names=["max_inflight"])))["result"]
    assert (result["text"], result["has_changed"]) == ("max_inflight stays 64", False)
    assert not (await client.call("resume", change("b")))["result"]["has_changed"]
    assert (await client.call("pause", change("c")))["result"]["has_changed"]
    event = await client.notified("event")
    assert event["kind"] == "action.pause", "the first of them"


@pytest.mark.parametrize("method", CHANGES)
async def test_an_operator_may_and_a_viewer_may_not(bench: Bench, method: str) -> None:
    operator, viewer = await bench.connect(Role.OPERATOR), await bench.connect(Role.VIEWER)
    assert "result" in await operator.call(method, change("k", **CHANGES[method]))
    error = (await viewer.call(method, change("k2", **CHANGES[method])))["error"]
    assert error["code"] == ErrorCode.ROLE
    assert (await viewer.call("throttle.get"))["result"]["limits"]["max_inflight"]["profile"] == 64


async def test_a_pause_moves_the_state_so_that_who_saw_the_former_one_is_refused(bench: Bench) -> None:
    one, other = await bench.connect(login="maria"), await bench.connect(login="ops")
    result = (await one.call("pause", change("a", expected_state_version=3)))["result"]
    assert (result["state"], result["state_version"]) == ("paused", 4)
    error = await other.call("throttle.set", change("b", expected_state_version=3, limits={"max_inflight": 1}))
    assert error["error"]["code"] == ErrorCode.CONFLICT
    assert error["error"]["data"]["state"] == "paused"
    assert (await other.call("resume", change("c", expected_state_version=4)))["result"]["state"] == "serving"


@pytest.mark.parametrize(
    ("method", "params", "fact", "remedy"),
    [
        ("throttle.set", {"limits": {"max_inflght": 3}}, 'no limit "max_inflght"', 'did you mean "max_inflight"?'),
        ("throttle.set", {"limits": {"x" * 10_000: 3}}, 'no limit "xxx', "valid: "),
        ("throttle.set", {"limits": {"max_inflight": -1}}, "max_inflight -1: expected", "throttle show"),
        ("throttle.set", {"limits": {"max_inflight": "16"}}, "got a text", "throttle show"),
        ("throttle.set", {"limits": {"min_class": "y" * 10_000}}, "is no class", "valid: low, normal, high"),
        ("throttle.set", {"limits": {"request_burst": 3}}, "limits nothing", "request_rate"),
        ("throttle.clear", {"names": ["max_inflight", "paussed"]}, 'no limit "paussed"', 'did you mean "paused"?'),
    ],
)
async def test_what_is_refused_says_so_in_the_answer_the_audit_log_and_an_event(
    bench: Bench, method: str, params: dict[str, Any], fact: str, remedy: str
) -> None:
    client = await bench.connect()
    await client.call("events.subscribe")
    error = (await client.call(method, change("k", **params)))["error"]
    assert error["code"] == ErrorCode.INVALID_PARAMS
    assert fact in error["message"] and len(error["message"]) < 300
    assert remedy in error["data"]["remedy"]
    assert bench.audit_lines()[-1]["outcome"] == "refused"
    assert (await client.notified("event"))["severity"] == "warning"
    assert bench.host.gate.limits.max_inflight == 64


async def test_whoever_expects_another_value_in_force_is_refused(bench: Bench) -> None:
    one, other = await bench.connect(login="maria"), await bench.connect(login="ops")
    await one.call("throttle.set", change("a", limits={"max_inflight": 32}))
    order = change("b", limits={"max_inflight": 16}, expected={"max_inflight": 64})
    error = (await other.call("throttle.set", order))["error"]
    assert (error["code"], error["message"]) == (
        ErrorCode.CONFLICT,
        "max_inflight is 32 (set by maria); this call expected 64",
    )
    assert bench.host.gate.limits.max_inflight == 32


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("throttle.set", {}),
        ("throttle.set", {"limits": {}}),
        ("throttle.set", {"limits": {"max_inflight": [1]}}),
        ("throttle.set", {"limits": {"max_inflight": {}}}),
        ("throttle.set", {"limits": {f"l{n}": 1 for n in range(17)}}),
        ("throttle.set", {"limits": {"max_inflight": 1}, "for_s": 0.5}),
        ("throttle.set", {"limits": {"max_inflight": 1}, "for_s": 1e9}),
        ("throttle.set", {"limits": {"max_inflight": 1}, "for_s": "10m"}),
        ("throttle.set", {"limits": {"max_inflight": 1}, "ttl_s": 5}),
        ("throttle.set", {"limits": {"max_inflight": 1}, "reason": "x" * 501}),
        ("throttle.clear", {"names": "max_inflight"}),
        ("throttle.clear", {"names": ["x"] * 17}),
        ("throttle.auto", {}),
        ("throttle.auto", {"mode": "maybe"}),
        ("pause", {"for_s": -1}),
        ("resume", {"for_s": 5}),
    ],
)
async def test_senseless_calls_are_refused_before_anything_is_written(
    bench: Bench, method: str, params: dict[str, Any]
) -> None:
    client = await bench.connect()
    error = (await client.call(method, change("k", **params)))["error"]
    assert error["code"] == ErrorCode.INVALID_PARAMS
    assert error["data"]["remedy"]
    assert bench.audit_lines() == []


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "1" * 400])
async def test_what_json_cannot_say_as_a_number_sets_nothing(bench: Bench, number: str) -> None:
    client = await bench.connect()
    params = json.dumps(change("k", limits={"max_inflight": "X"})).replace('"X"', number)
    client.send_raw(f'{{"jsonrpc": "2.0", "id": 7, "method": "throttle.set", "params": {params}}}\n'.encode())
    frame = await client.read()
    while "method" in frame:
        frame = await client.read()
    assert "error" in frame
    assert bench.host.gate.limits.max_inflight == 64


async def test_a_pause_sent_again_with_the_same_key_is_one(bench: Bench) -> None:
    client = await bench.connect()
    first = await client.call("pause", change("k"))
    assert (await client.call("pause", change("k")))["result"] == first["result"]
    assert len(bench.audit_lines()) == 2
