"""One connection: hello, calls, what a misbehaving host does to them."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from console.call_errors import CallFailed, CannotConnect, ConnectionLost, NoAnswer
from console.client import connected
from engine_host.protocol.envelope import ErrorCode, RpcError, encode_error, encode_notification, encode_result
from engine_host.protocol.errors import (
    EXIT_FAILED,
    EXIT_INVALID,
    EXIT_REFUSED,
    EXIT_TIMED_OUT,
    EXIT_UNREACHABLE,
)
from engine_host.protocol.frames import MAX_FRAME_BYTES
from engine_host.protocol.methods import ProtocolRange, SubscribeTelemetry
from engine_host.protocol.snapshot import Snapshot
from tests.console import sample
from tests.console.scripted_host import scripted_host


async def test_a_connection_begins_with_hello_and_answers_calls(host):
    async with connected(host.path) as client:
        assert client.hello == host.hello
        assert await client.read("status", Snapshot) == host.snapshot


async def test_answers_find_their_calls_in_whatever_order_they_were_asked(host):
    async with connected(host.path) as client:
        answers = await asyncio.gather(
            *(client.call("status") for _ in range(20)), client.call("host.stop", {"idempotency_key": "k"})
        )
    assert len({bytes(a) for a in answers[:20]}) == 1
    assert b"host.stop is done" in bytes(answers[-1])


async def test_notifications_arrive_in_order(host, until):
    host.next_snapshot = lambda first, number: msgspec.structs.replace(first, seq=number)
    host.interval_s = 0.001
    seen = []
    async with connected(host.path, lambda method, params: seen.append((method, params))) as client:
        await client.call("telemetry.subscribe", SubscribeTelemetry(interval_s=1.0))
        await until(lambda: len(seen) >= 5)
    assert {method for method, _ in seen} == {"telemetry"}
    assert [msgspec.json.decode(p, type=Snapshot).seq for _, p in seen[:5]] == [1, 2, 3, 4, 5]


async def test_no_hello_before_the_deadline_is_said(host):
    host.silent.add("hello")
    with pytest.raises(CannotConnect, match=r"did not say hello within 0\.1 s"):
        async with connected(host.path, hello_deadline_s=0.1):
            pass


async def test_a_protocol_that_is_not_shared_names_both_ranges(tmp_path):
    hello = sample.hello(protocol=ProtocolRange(min=2, max=3), host_version="0.9.0")
    async with scripted_host(tmp_path / "h.sock", hello=hello) as host:
        with pytest.raises(CannotConnect) as caught:
            async with connected(host.path):
                pass
    assert "2 to 3, this console 1" in caught.value.fact
    assert "0.9.0" in caught.value.remedy


async def test_a_mismatch_is_said_even_when_the_rest_of_hello_is_unreadable(host):
    host.raw_hello = encode_notification("hello", {"protocol": {"min": 7, "max": 7}, "shape": "of the future"})
    with pytest.raises(CannotConnect, match="control protocol 7"):
        async with connected(host.path):
            pass


@pytest.mark.parametrize(
    "first",
    [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"[1,2]\n", b'"hello"\n', b"\xff\xfe\n", b'{"method":"hello"}\n',
     b'{"jsonrpc":"2.0","method":"telemetry","params":{}}\n', b"x" * (MAX_FRAME_BYTES + 2)],
)  # fmt: skip
async def test_something_that_is_no_engine_host_is_recognised(host, first):
    host.raw_hello = first
    with pytest.raises(CannotConnect) as caught:
        async with connected(host.path):
            pass
    assert caught.value.exit_code == EXIT_UNREACHABLE
    assert str(host.path) in caught.value.fact


async def test_a_host_that_turns_the_connection_away_is_quoted(host):
    host.raw_hello = encode_error(None, RpcError(ErrorCode.BUSY, "64 consoles are attached", {"remedy": "close one"}))
    with pytest.raises(CallFailed) as caught:
        async with connected(host.path):
            pass
    assert caught.value.exit_code == EXIT_REFUSED
    assert "64 consoles" in caught.value.fact
    assert caught.value.remedy == "close one"


async def test_a_socket_nobody_listens_on_is_told_from_one_that_is_missing(host, tmp_path):
    await host.stop()
    with pytest.raises(CannotConnect, match="has ended"):
        async with connected(host.path):
            pass
    with pytest.raises(CannotConnect, match="no socket"):
        async with connected(tmp_path / "none.sock"):
            pass


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [(ErrorCode.ROLE, EXIT_REFUSED), (ErrorCode.CONFLICT, EXIT_REFUSED), (ErrorCode.AUDIT, EXIT_REFUSED),
     (ErrorCode.BUSY, EXIT_REFUSED), (ErrorCode.FAILED, EXIT_FAILED), (ErrorCode.INTERNAL, EXIT_FAILED),
     (ErrorCode.INVALID_PARAMS, EXIT_INVALID), (ErrorCode.UNKNOWN_METHOD, EXIT_INVALID)],
)  # fmt: skip
async def test_an_error_answer_keeps_fact_and_remedy_and_gets_its_exit_code(host, code, exit_code):
    host.failing["status"] = RpcError(code, "it went wrong", {"remedy": "do this"})
    async with connected(host.path) as client:
        with pytest.raises(CallFailed) as caught:
            await client.call("status")
    assert caught.value.fact == "status: it went wrong"
    assert caught.value.remedy == "do this"
    assert caught.value.exit_code == exit_code


async def test_an_answer_that_does_not_come_is_an_unknown_outcome_and_is_not_asked_again(host):
    host.silent.add("host.stop")
    async with connected(host.path) as client:
        with pytest.raises(NoAnswer) as caught:
            await client.call("host.stop", {"idempotency_key": "k"}, deadline_s=0.05)
        await client.call("status")
    assert caught.value.exit_code == EXIT_TIMED_OUT
    assert host.methods_asked() == ["host.stop", "status"]


async def test_an_answer_after_its_deadline_disturbs_nobody(host):
    host.silent.add("host.stop")
    async with connected(host.path) as client:
        with pytest.raises(NoAnswer):
            await client.call("host.stop", {"idempotency_key": "k"}, deadline_s=0.05)
        host.send_all(encode_result(1, {"late": True}))
        assert await client.read("status", Snapshot) == host.snapshot


async def test_a_connection_lost_in_a_call_fails_the_call(host):
    host.dropping.add("status")
    async with connected(host.path) as client:
        with pytest.raises(ConnectionLost, match="the host closed it") as caught:
            await client.call("status")
        assert caught.value.was_sent
        with pytest.raises(ConnectionLost) as later:
            await client.call("status")
        assert not later.value.was_sent
    assert host.methods_asked() == ["status"]


@pytest.mark.parametrize("frame", [b"nonsense\n", b"{}{}\n", b"\xff\n", b"x" * (MAX_FRAME_BYTES + 1)])
async def test_a_malformed_frame_ends_the_connection_with_its_reason(host, frame):
    async with connected(host.path) as client:
        host.send_all(frame)
        reason = await asyncio.wait_for(client.wait_closed(), 5)
    assert reason in {"it sent something that is no JSON-RPC message", "it sent a frame beyond the size limit"}


async def test_an_answer_of_another_shape_is_said_to_be_not_understood(host):
    async with connected(host.path) as client:
        with pytest.raises(ConnectionLost, match="status is not understood"):
            await client.read("status", list[int])


async def test_what_a_consumer_raises_comes_out(host):
    class Full(Exception):
        pass

    def consume(method: str, params: msgspec.Raw) -> None:
        raise Full

    with pytest.raises(Full):
        async with connected(host.path, consume) as client:
            await client.call("telemetry.subscribe", SubscribeTelemetry())
            await asyncio.wait_for(client.wait_closed(), 5)


@given(st.lists(st.binary(min_size=1, max_size=60), min_size=1, max_size=6))
@settings(max_examples=40)
async def test_no_bytes_from_a_host_break_more_than_the_connection(tmp_path_factory, chunks):
    """Whatever arrives, a waiting call ends in one of the client's own errors."""
    path = tmp_path_factory.mktemp("fuzz") / "h.sock"
    async with scripted_host(path, silent={"status"}) as host, connected(path) as client:
        for chunk in chunks:
            host.send_all(chunk)
        host.send_all(b"\n")
        with pytest.raises((ConnectionLost, NoAnswer, CallFailed)):
            await client.call("status", deadline_s=0.05)
