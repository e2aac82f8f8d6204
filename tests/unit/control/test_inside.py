"""Dials, requests and blocks over the control socket: roles, audit, events, frames."""

from __future__ import annotations

import pytest

from engine_host.protocol.envelope import ErrorCode
from engine_host.protocol.errors import EXIT_INVALID, EXIT_REFUSED, EXIT_TIMED_OUT, OperatorError
from engine_host.protocol.methods import Role

from .harness import Bench, change


async def test_a_dial_is_set_audited_and_told_with_its_reason_once(bench: Bench) -> None:
    client = await bench.connect(Role.OPERATOR, login="maria")
    await client.call("events.subscribe")
    result = (
        await client.call("dials.set", change("k", values={"speculative_tokens": 2}, for_s=600, reason="trying"))
    )["result"]
    assert result["dials"]["speculative_tokens"]["value"] == 2
    event = await client.notified("event")
    assert (event["kind"], event["who"]) == ("action.dials.set", "maria")
    assert event["text"] == "speculative_tokens 5 → 2: trying"
    intent, outcome = bench.audit_lines()
    assert (intent["params"]["values"], intent["reason"]) == ({"speculative_tokens": 2}, "trying")
    assert outcome["outcome"] == "applied"


@pytest.mark.parametrize(
    ("exit_code", "code", "fate"),
    [
        (EXIT_REFUSED, ErrorCode.CONFLICT, "refused"),
        (EXIT_INVALID, ErrorCode.INVALID_PARAMS, "refused"),
        (EXIT_TIMED_OUT, ErrorCode.UNKNOWN_OUTCOME, "unknown"),
    ],
)
async def test_a_dial_that_is_not_set_says_so_in_the_answer_and_the_audit_log(
    bench: Bench, exit_code: int, code: ErrorCode, fate: str
) -> None:
    bench.host.failure = OperatorError("why", "what to do", exit_code=exit_code)
    client = await bench.connect()
    error = (await client.call("dials.set", change("k", values={"speculative_tokens": 2})))["error"]
    assert (error["code"], error["message"], error["data"]["remedy"]) == (code, "why", "what to do")
    assert bench.audit_lines()[-1]["outcome"] == fate


async def test_a_dial_set_again_with_the_same_key_is_set_once(bench: Bench) -> None:
    client = await bench.connect()
    for _ in range(2):
        await client.call("dials.set", change("k", values={"speculative_tokens": 2}))
    assert len(bench.audit_lines()) == 2  # one intent, one outcome


@pytest.mark.parametrize(("method", "role"), [("dials.set", Role.VIEWER), ("requests.abort", Role.OPERATOR)])
async def test_whoever_only_looks_changes_nothing(bench: Bench, method: str, role: Role) -> None:
    client = await bench.connect(role)
    error = (await client.call(method, change("k", values={"speculative_tokens": 2}, id="a")))["error"]
    assert error["code"] == ErrorCode.ROLE


async def test_everybody_may_look(bench: Bench) -> None:
    client = await bench.connect(Role.VIEWER)
    assert (await client.call("dials.get"))["result"]["dials"]["speculative_tokens"]["high"] == 5
    assert (await client.call("kv.map"))["result"]["cells"] == [[1, 0, 0, 0]]


async def test_a_request_is_aborted_with_an_event(bench: Bench) -> None:
    client = await bench.connect()
    await client.call("events.subscribe")
    assert (await client.call("requests.abort", change("k", id="a", reason="runaway")))["result"]["text"] == "ended a"
    assert (await client.notified("event"))["text"] == "ended a (runaway)"


async def test_a_list_of_requests_is_cut_to_what_a_frame_holds(bench: Bench) -> None:
    client = await bench.connect(Role.VIEWER)
    result = (await client.call("requests.list", {"limit": 2_000}))["result"]
    assert 500 <= len(result["requests"]) < 2_000  # each id has 600 bytes
    assert result["total"] == 5_000


@pytest.mark.parametrize(
    "params",
    [{"values": {}}, {"values": {"k": 1.5}}, {"values": {"k": 1}, "for_s": 0}, {"values": {"k": 1}, "for_s": 1e9}],
)
async def test_senseless_dials_are_refused_before_anything_is_written(bench: Bench, params: dict[str, object]) -> None:
    client = await bench.connect()
    assert (await client.call("dials.set", change("k", **params)))["error"]["code"] == ErrorCode.INVALID_PARAMS
    assert bench.audit_lines() == []
