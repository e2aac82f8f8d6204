"""Many sessions, slow readers and floods: what a peer can cost the host."""

from __future__ import annotations

import asyncio
import os
import random
import socket
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine_host.control import outlet, server, session
from engine_host.protocol.envelope import ErrorCode
from engine_host.protocol.methods import METHODS, Role

from .harness import Bench, Client, change, running_server, until


async def test_sessions_beyond_the_limit_are_told_so(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MAX_SESSIONS", 2)
    one, _two = await bench.connect(), await bench.connect()
    third = await bench.connect_unread()
    error = (await third.read())["error"]
    assert error["code"] == ErrorCode.BUSY
    assert error["message"] == "2 consoles and scripts are connected to this host already, its limit"
    assert "pgrep -af vllm-console" in error["data"]["remedy"]
    assert await third.is_closed_by_host()
    one.close()
    third.close()
    await until(lambda: bench.server.session_count == 1, "a place to be free")
    assert "result" in await (await bench.connect()).call("status")


async def test_viewers_leave_room_for_the_operator(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MAX_VIEWER_SESSIONS", 2)
    await bench.connect(Role.VIEWER)
    await bench.connect(Role.VIEWER)
    third = await bench.connect_unread()
    assert (await third.read())["error"]["code"] == ErrorCode.BUSY
    assert "result" in await (await bench.connect(Role.ADMIN)).call("status")


async def test_a_slow_reader_gets_fewer_and_newer_snapshots(bench: Bench) -> None:
    slow, quick = await bench.connect(), await bench.connect()
    await slow.call("telemetry.subscribe", {"interval_s": 0.1})
    await slow.notified("telemetry")
    slow.writer.transport.pause_reading()  # type: ignore[attr-defined]
    await quick.call("telemetry.subscribe", {"interval_s": 0.1})
    for _ in range(15):
        newest = (await quick.notified("telemetry"))["seq"]
    slow.writer.transport.resume_reading()  # type: ignore[attr-defined]
    stale, fresh = await slow.notified("telemetry"), await slow.notified("telemetry")
    assert stale["seq"] < newest - 10
    assert fresh["seq"] > newest  # nothing of what lay between was kept for it


def raw_connection(bench: Bench) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.setblocking(False)
    connection.connect(str(bench.socket_path))
    return connection


async def test_a_reader_that_never_reads_costs_a_bounded_amount_of_memory(bench: Bench) -> None:
    """It asks for 100 kB snapshots as fast as it can and subscribes to everything, and reads none of it."""
    bench.host.padding = "x" * 100_000
    loop = asyncio.get_running_loop()
    before = psutil.Process().memory_info().rss
    connection = raw_connection(bench)
    requests = b'{"jsonrpc":"2.0","id":1,"method":"events.subscribe"}\n' + b'{"id":1,"method":"status"}\n' * 2_000
    sending = asyncio.create_task(loop.sock_sendall(connection, requests * 20))
    await until(lambda: bench.host.seq > 2, "the first requests to be answered")
    for number in range(20_000):
        bench.host.events.append("flood", f"event {number}")
        if number % 100 == 0:
            await asyncio.sleep(0)
    quick = await bench.connect()
    for _ in range(50):
        await quick.call("status")
    assert not sending.done()  # the host no longer reads what it asks
    (stuck,) = [one for one in bench.server._sessions if not one._outlet.is_writable]
    assert stuck._transport.get_write_buffer_size() <= outlet.HELD_BACK_BYTES + 2 * 101_000
    assert sum(len(frame) for frame in stuck._frames) <= session.READ_BYTES
    assert bench.host.seq < 200
    assert psutil.Process().memory_info().rss - before < 32 << 20
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)
    connection.close()


async def test_a_reader_that_never_reads_is_closed_after_a_while(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outlet, "UNREAD_TIMEOUT_S", 0.05)
    monkeypatch.setattr(server, "SWEEP_S", 0.05)
    with raw_connection(bench):
        await until(lambda: bench.server.session_count == 1, "the session to be there")
        await until(lambda: bench.server.session_count == 0, "the session to be closed")
    # Long enough that a busy machine does not make a slow reader of the one that reads.
    monkeypatch.setattr(outlet, "UNREAD_TIMEOUT_S", 0.6)
    attentive = await bench.connect()
    await attentive.call("telemetry.subscribe", {"interval_s": 0.1})
    for _ in range(10):
        await attentive.notified("telemetry")
    assert bench.server.session_count == 1


async def a_session_being_closed_costs_the_others_nothing(directory: Path) -> None:
    """A subscriber is closed for what it sent, and still has an action under way, when the next events come."""
    failures: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
    async with running_server(directory) as bench:
        faulty, watcher = await bench.connect(), await bench.connect(Role.VIEWER, uid=5)
        for client in (faulty, watcher):
            await client.call("events.subscribe")
        bench.host.may_finish.clear()
        faulty.send("engine.restart", change("k"))
        await until(lambda: bench.host.calls, "the action to begin")
        faulty.send_raw(b"x" * (1 << 20) + b"xx")
        assert (await faulty.reply(None))["error"]["code"] == ErrorCode.FRAME_TOO_LARGE
        for text in ("one", "two"):
            bench.host.events.append("test", text)
            assert (await watcher.notified("event"))["text"] == text
        bench.host.may_finish.set()
        assert (await watcher.notified("event"))["kind"] == "action.engine.restart"
        assert await faulty.is_closed_by_host()
    assert failures == []


async def test_a_session_being_closed_costs_the_others_nothing(short_dir: Path) -> None:
    await a_session_being_closed_costs_the_others_nothing(short_dir)


async def test_nor_does_it_under_uvloop(short_dir: Path) -> None:
    uvloop = pytest.importorskip("uvloop")
    await asyncio.to_thread(uvloop.run, a_session_being_closed_costs_the_others_nothing(short_dir))


async def test_a_session_that_fails_is_closed_and_the_others_served(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "SWEEP_S", 0.02)
    failing, watcher = await bench.connect(), await bench.connect()
    for client in (failing, watcher):
        await client.call("events.subscribe")
    first, _ = bench.server._sessions

    def broken() -> None:
        raise RuntimeError("this session cannot be served")

    monkeypatch.setattr(first, "pump_events", broken)
    for text in ("one", "two"):
        bench.host.events.append("test", text)
        assert (await watcher.notified("event"))["text"] == text
    assert await failing.is_closed_by_host()
    (second,) = bench.server._sessions
    monkeypatch.setattr(second, "close_if_abandoned", lambda now: broken())
    assert await watcher.is_closed_by_host()
    assert "result" in await (await bench.connect()).call("status")
    assert not any(task.done() for task in bench.server._tasks)


async def test_closing_does_not_wait_for_a_reader_that_does_not_read(bench: Bench) -> None:
    bench.host.padding = "x" * 500_000
    connection = raw_connection(bench)
    await asyncio.get_running_loop().sock_sendall(connection, b'{"id":1,"method":"status"}\n' * 4)
    await until(lambda: bench.host.seq > 1, "the first request to be answered")
    started = asyncio.get_running_loop().time()
    await bench.server.close(0.5)
    assert asyncio.get_running_loop().time() - started < 2.5
    assert bench.server.session_count == 0
    assert not bench.socket_path.exists()
    connection.close()


async def test_closing_waits_for_a_reply_that_is_still_being_read(bench: Bench) -> None:
    bench.host.padding = "x" * 900_000
    client = await bench.connect()
    client.writer.transport.pause_reading()  # type: ignore[attr-defined]
    before = bench.host.seq
    status = client.send("status")
    await until(lambda: bench.host.seq > before, "the request to be answered")
    closing = asyncio.create_task(bench.server.close(5.0))
    await until(lambda: bench.server._server is None, "the close to begin")
    await asyncio.sleep(0)
    client.writer.transport.resume_reading()  # type: ignore[attr-defined]
    assert "result" in await client.reply(status)
    await closing
    assert await client.is_closed_by_host()


async def test_closing_twice_or_before_the_start_does_nothing(short_dir: Path) -> None:
    async with running_server(short_dir) as bench:
        await bench.server.close(1.0)
        await bench.server.close(1.0)
    assert not bench.socket_path.exists()


async def test_no_file_descriptor_is_left_behind(bench: Bench) -> None:
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    for _ in range(50):
        client = await bench.connect()
        client.close()
        await client.writer.wait_closed()
    await until(lambda: bench.server.session_count == 0, "all sessions to be gone")
    assert len(os.listdir("/proc/self/fd")) <= before  # noqa: PTH208


# What a stranger may send: anything.

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
valid_requests = st.builds(
    lambda id, method, params: {"jsonrpc": "2.0", "id": id, "method": method, "params": params},
    st.integers(0, 99),
    st.sampled_from(sorted(METHODS)),
    st.dictionaries(
        st.sampled_from(["interval_s", "series", "span_s", "after_seq", "limit", "reason", "idempotency_key", "x"]),
        json_values,
        max_size=4,
    ),
)
odd_requests = st.dictionaries(st.sampled_from(["jsonrpc", "id", "method", "params"]), json_values)


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A valid request with bytes removed, repeated or replaced."""
    frame = bytearray(msgspec.json.encode(draw(valid_requests)))
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(frame)))
        end = draw(st.integers(start, min(len(frame), start + 8)))
        frame[start:end] = draw(st.binary(max_size=8) | st.just(bytes(frame[start:end]) * 2))
    return bytes(frame)


as_json = st.one_of(json_values, odd_requests, valid_requests).map(msgspec.json.encode)
frames = st.lists(st.one_of(st.binary(max_size=200), as_json, mutated()), max_size=8)


async def _is_answered_or_closed(bench: Bench, sent: list[bytes], role: Role, cuts: random.Random) -> None:
    client = await bench.connect(role)
    data = b"".join(frame + b"\n" for frame in sent) + b'{"jsonrpc":"2.0","id":"last","method":"status"}\n'
    while data:
        size = cuts.randint(1, len(data))
        client.send_raw(data[:size])
        data = data[size:]
        await asyncio.sleep(0)
    replies = await _replies_until_last(client)
    assert all(reply["error"]["data"]["remedy"] for reply in replies if "error" in reply)
    not_blank = sum(1 for frame in b"\n".join(sent).split(b"\n") if frame.strip())
    assert len(replies) <= not_blank + 1
    client.close()
    if role is Role.VIEWER:
        assert bench.host.calls == []


async def _replies_until_last(client: Client) -> list[dict[str, Any]]:
    replies = []
    while True:
        frame = await client.read()
        if "method" not in frame:
            replies.append(frame)
            if frame["id"] == "last":
                return replies


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sent=st.lists(frames, min_size=1, max_size=5), role=st.sampled_from(list(Role)), cuts=st.randoms())
def test_nothing_that_is_sent_ends_the_server_or_goes_unanswered(
    short_dir: Path, sent: list[list[bytes]], role: Role, cuts: random.Random
) -> None:
    async def scenario() -> None:
        failures: list[dict[str, object]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
        async with running_server(short_dir) as bench:
            for one in sent:
                await _is_answered_or_closed(bench, one, role, cuts)
        assert failures == []

    asyncio.run(scenario())


async def test_the_same_holds_under_uvloop(short_dir: Path) -> None:
    """vLLM installs it, and the host may run on it."""
    uvloop = pytest.importorskip("uvloop")

    async def scenario() -> None:
        async with running_server(short_dir) as bench:
            client = await bench.connect()
            await client.call("telemetry.subscribe", {"interval_s": 0.1})
            first, second = await client.notified("telemetry"), await client.notified("telemetry")
            assert second["seq"] > first["seq"]
            client.send_raw(b"x" * (1 << 20) + b"xx")
            assert (await client.reply(None))["error"]["code"] == ErrorCode.FRAME_TOO_LARGE
            assert await client.is_closed_by_host()
            caller = await bench.connect()
            stop = caller.send("host.stop", change("k"))
            await asyncio.wait_for(bench.host.stopped.wait(), 5)
            await bench.server.close(5.0)
            assert "result" in await caller.reply(stop)

    await asyncio.to_thread(uvloop.run, scenario())
