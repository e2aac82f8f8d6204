"""The standing connection: what it asks, how it comes back, what it never does."""

from __future__ import annotations

import asyncio
import contextlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from console import link as link_module
from console.call_errors import ConnectionLost
from console.connect import Target
from console.link import JITTER, LAST_RETRY_S, Link, backoff_s
from console.model import Link as LinkState
from console.model import State, reduce
from engine_host.protocol.envelope import ErrorCode, RpcError, encode_notification
from engine_host.protocol.events import Event
from engine_host.protocol.methods import Applied
from tests.console import sample


class Console:
    """A link and the state it makes."""

    def __init__(self, path):
        self.state = State(target=str(path))
        self.link = Link(Target(path), self.post)

    def post(self, message):
        self.state = reduce(self.state, message)


@contextlib.asynccontextmanager
async def running(console):
    task = asyncio.create_task(console.link.run())
    try:
        yield console
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(link_module, "FIRST_RETRY_S", 0.01)
    monkeypatch.setattr(link_module, "LAST_RETRY_S", 0.05)


async def test_it_brings_snapshot_history_and_events(host, until):
    async with running(Console(host.path)) as console:
        await until(lambda: len(console.state.events) == 6 and console.state.series)
    assert console.state.snapshot == host.snapshot
    assert len(console.state.series["kv.usage"].values) >= 299


async def test_it_comes_back_and_resumes_the_events_where_it_stopped(host, until):
    async with running(Console(host.path)) as console:
        await until(lambda: len(console.state.events) == 6)
        host.drop_all()
        await until(lambda: host.connections == 2)
        await until(lambda: console.state.link is LinkState.UP)
        host.happened(Event(seq=7, at=sample.AT, kind="x", text="while away or after"))
        await until(lambda: len(console.state.events) == 7)
    asked = [params["after_seq"] for method, params in host.asked if method == "events.subscribe"]
    assert asked == [0, 6]


async def test_a_restarted_host_is_noticed_and_its_events_start_over(host, until):
    async with running(Console(host.path)) as console:
        await until(lambda: len(console.state.events) == 6)
        await host.stop()
        await until(lambda: console.state.link is LinkState.DOWN)
        host.hello = sample.hello(boot_id="boot-b", event_seq=1)
        first = sample.serving()
        host.snapshot = msgspec.structs.replace(first, host=msgspec.structs.replace(first.host, boot_id="boot-b"))
        host.events = [Event(seq=1, at=sample.AT, kind="x", text="a new life")]
        await host.start()
        await until(lambda: [e.text for e in console.state.events] == ["a new life"])
    assert console.state.events_missed == 0


async def test_no_host_is_waited_for_with_its_reason_on_record(host, until):
    await host.stop()
    async with running(Console(host.path)) as console:
        await until(lambda: console.state.link is LinkState.DOWN)
        assert "has ended" in console.state.link_reason
        await host.start()
        await until(lambda: console.state.snapshot is not None)


async def test_malformed_telemetry_ends_the_connection_and_not_the_console(host, until):
    async with running(Console(host.path)) as console:
        await until(lambda: console.state.link is LinkState.UP and console.state.events)
        host.send_all(encode_notification("telemetry", {"seq": "one"}))
        await until(lambda: host.connections >= 2 and console.state.link is LinkState.UP)
    assert console.state.snapshot == host.snapshot


async def test_a_host_without_history_is_shown_all_the_same(host, until):
    host.failing["history"] = RpcError(ErrorCode.UNKNOWN_METHOD, "no such method")
    async with running(Console(host.path)) as console:
        await until(lambda: len(console.state.events) == 6)
    assert console.state.link is LinkState.UP


async def test_an_action_whose_answer_is_lost_is_not_sent_again(host, until):
    host.dropping.add("host.stop")
    async with running(Console(host.path)) as console:
        await until(lambda: console.state.events)
        with pytest.raises(ConnectionLost):
            await console.link.call("host.stop", Applied, {"idempotency_key": "k"}, 5.0)
        await until(lambda: host.connections == 2 and console.state.link is LinkState.UP)
        await until(lambda: host.methods_asked().count("events.subscribe") == 2)
    assert host.methods_asked().count("host.stop") == 1


async def test_an_action_without_a_connection_is_refused_and_not_kept_for_later(host):
    console = Console(host.path)
    with pytest.raises(ConnectionLost) as caught:
        await console.link.call("host.stop", Applied, {"idempotency_key": "k"}, 5.0)
    assert not caught.value.was_sent


@given(st.integers(1, 10_000))
def test_waits_between_tries_are_bounded(failures):
    assert 0 < backoff_s(failures) <= LAST_RETRY_S * (1 + JITTER)
