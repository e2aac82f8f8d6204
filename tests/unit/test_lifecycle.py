"""The state table of the lifecycle, row by row, on an engine that fails on demand."""

from __future__ import annotations

import asyncio
import json
import math
from typing import Any

import pytest

from engine_host.engine import death_watch, last_words
from engine_host.engine.crash_policy import CRASH_LIMIT
from engine_host.engine.port import EngineStartError
from engine_host.protocol.errors import EXIT_FAILED, EXIT_REFUSED, OperatorError
from engine_host.protocol.snapshot import State

from .scripted_engine import ScriptedEngine
from .world import World, hold_request


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(death_watch, "POLL_S", 0.005)
    monkeypatch.setattr(last_words, "LAST_WORDS_S", 0.0)


async def test_it_starts_serves_and_stops() -> None:
    world = World()
    run = asyncio.create_task(world.lifecycle.run())
    await world.until_state(State.SERVING)
    assert world.lifecycle.facts is not None
    assert await world.lifecycle.stop(1.0) == "host stopped"
    await run
    assert world.states[:3] == [State.STARTING, State.SERVING, State.DRAINING]
    assert world.made[0].stopped_with


async def test_a_first_start_that_fails_ends_the_host_with_the_engines_own_reason() -> None:
    world = World(ScriptedEngine(start_error="Engine core initialization failed. See root cause above."))
    world.log.reason = "ValueError: the KV cache is too small"
    with pytest.raises(EngineStartError, match="KV cache is too small"):
        await world.lifecycle.run()
    assert world.made[0].stopped_with


async def test_an_engine_that_dies_is_dead_first_and_then_restarted() -> None:
    first = ScriptedEngine()
    world = World(first)
    run = asyncio.create_task(world.lifecycle.run())
    await world.until_state(State.SERVING)
    first.is_dead = True
    await world.until(lambda: len(world.made) == 2 and world.lifecycle.state is State.SERVING)
    assert world.states == [State.STARTING, State.SERVING, State.DEAD, State.RECOVERING, State.SERVING]
    assert world.lifecycle.generation == 2
    assert world.lifecycle.crashes_in_window == 1
    await world.lifecycle.stop(0.0)
    await run


async def test_a_crash_loop_ends_with_the_reason_and_a_restart_brings_it_back() -> None:
    world = World(*[ScriptedEngine(is_dead=True) for _ in range(CRASH_LIMIT)])
    world.log.reason = "RuntimeError: boom"
    run = asyncio.create_task(world.lifecycle.run())
    await world.until(lambda: any("giving up" in text for _, text in world.events))
    assert world.lifecycle.state is State.DEAD
    assert world.lifecycle.restart_in_s is None
    assert world.lifecycle.failure is not None and world.lifecycle.failure.reason == "RuntimeError: boom"
    assert len(world.made) == CRASH_LIMIT
    assert "restarted in" in await world.lifecycle.restart(1.0)
    assert world.lifecycle.state is State.SERVING
    assert world.lifecycle.crashes_in_window == 0
    await world.lifecycle.stop(0.0)
    await run


async def test_a_restart_that_fails_says_why_and_is_tried_again() -> None:
    world = World(ScriptedEngine(), ScriptedEngine(start_error="out of memory"), ScriptedEngine())
    run = asyncio.create_task(world.lifecycle.run())
    await world.until_state(State.SERVING)
    with pytest.raises(OperatorError, match="out of memory") as caught:
        await world.lifecycle.restart(1.0)
    assert caught.value.exit_code == EXIT_FAILED
    await world.until(lambda: len(world.made) == 3 and world.lifecycle.state is State.SERVING)
    await world.lifecycle.stop(0.0)
    await run


async def test_draining_lets_requests_finish_and_refuses_new_ones() -> None:
    world = World()
    run = asyncio.create_task(world.lifecycle.run())
    await world.until_state(State.SERVING)
    release = asyncio.Event()
    request = asyncio.create_task(hold_request(world.entry, release))
    await world.until(lambda: world.entry.inflight == 1)
    stop = asyncio.create_task(world.lifecycle.stop(30.0))
    await world.until_state(State.DRAINING)
    phase, _ = world.lifecycle.phase
    assert phase is not None and "1 request left" in phase
    assert not stop.done()
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request"}

    await world.entry({"type": "http", "method": "POST"}, receive, send)
    assert sent[0]["status"] == 503 and (b"retry-after", b"30") in sent[0]["headers"]
    release.set()
    await stop
    await request
    await run


async def test_the_drain_deadline_and_force_end_a_drain_that_does_not_end() -> None:
    for by_force in (False, True):
        world = World()
        run = asyncio.create_task(world.lifecycle.run())
        await world.until_state(State.SERVING)
        release = asyncio.Event()
        request = asyncio.create_task(hold_request(world.entry, release))
        await world.until(lambda world=world: world.entry.inflight == 1)  # type: ignore[misc]
        stop = asyncio.create_task(world.lifecycle.stop(60.0 if by_force else 0.05))
        await world.until_state(State.DRAINING)
        if by_force:
            world.lifecycle.force()
        await stop
        assert ("drain.cut_short", "1 request ended early: forced") in world.events or not by_force
        assert any(kind == "drain.cut_short" for kind, _ in world.events)
        release.set()
        await request
        await run


async def test_a_stop_during_a_start_ends_the_start_at_once() -> None:
    world = World(ScriptedEngine(start_hangs=True))
    run = asyncio.create_task(world.lifecycle.run())
    await world.until(lambda: bool(world.made))
    await world.lifecycle.stop(30.0)
    await run
    assert world.made[0].stopped_with


async def test_a_restart_during_a_start_is_refused() -> None:
    world = World(ScriptedEngine(start_hangs=True))
    run = asyncio.create_task(world.lifecycle.run())
    await world.until(lambda: bool(world.made))
    with pytest.raises(OperatorError, match="already starting") as caught:
        await world.lifecycle.restart(1.0)
    assert caught.value.exit_code == EXIT_REFUSED
    await world.lifecycle.stop(0.0)
    await run


async def in_drain(world: World, command: str, drain_s: float) -> tuple[Any, Any, asyncio.Event, Any]:
    """A world whose `command` drains: its run, the command, the release of the request in flight, the request."""
    run = asyncio.create_task(world.lifecycle.run())
    await world.until_state(State.SERVING)
    release = asyncio.Event()
    request = asyncio.create_task(hold_request(world.entry, release))
    await world.until(lambda: world.entry.inflight == 1)
    first = asyncio.create_task(getattr(world.lifecycle, command)(drain_s))
    await world.until_state(State.DRAINING)
    return run, first, release, request


async def test_a_stop_supersedes_a_restart_that_drains_and_starts_nothing_more() -> None:
    world = World()
    run, restart, release, request = await in_drain(world, "restart", 3600.0)
    async with asyncio.timeout(30):
        assert await world.lifecycle.stop(0.0) == "host stopped"
        await run
    with pytest.raises(OperatorError, match="stops the host") as caught:
        await restart
    assert caught.value.exit_code == EXIT_REFUSED
    assert len(world.made) == 1
    release.set()
    await request


async def test_the_nearer_deadline_of_two_stops_counts_and_both_are_answered() -> None:
    world = World()
    run, first, release, request = await in_drain(world, "stop", 3600.0)
    async with asyncio.timeout(30):
        assert await world.lifecycle.stop(0.0) == "host stopped"
        assert await first == "host stopped"
        await run
    release.set()
    await request


async def test_a_restart_during_a_stop_is_refused_not_called_done() -> None:
    world = World()
    run, stop, release, request = await in_drain(world, "stop", 60.0)
    with pytest.raises(OperatorError, match="already drains for a stop") as caught:
        await world.lifecycle.restart(0.0)
    assert caught.value.exit_code == EXIT_REFUSED
    release.set()
    await asyncio.gather(stop, run, request)


async def test_a_kill_by_signal_is_the_reason_whatever_the_log_holds() -> None:
    first = ScriptedEngine(by_signal=True)
    world = World(first)
    world.log.reason = "ValueError: prompt is longer than the context"
    run = asyncio.create_task(world.lifecycle.run())
    await world.until_state(State.SERVING)
    first.is_dead = True
    await world.until(lambda: len(world.made) == 2 and world.lifecycle.state is State.SERVING)
    assert world.lifecycle.failure is not None and "SIGKILL" in world.lifecycle.failure.reason
    await world.lifecycle.stop(0.0)
    await run


async def test_a_failed_first_start_is_told_on_the_socket_before_the_host_ends() -> None:
    world = World(ScriptedEngine(start_error="x" * 5000))
    with pytest.raises(EngineStartError):
        await world.lifecycle.run()
    assert world.lifecycle.state is State.DEAD
    assert world.lifecycle.failure is not None and len(world.lifecycle.failure.reason) <= 400
    assert world.events[-1][0] == "state.dead"


async def answer_of(world: World, method: str = "POST") -> tuple[int, dict[str, str], dict[str, Any]]:
    """What a client gets now: status, headers, body."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request"}

    await world.entry({"type": "http", "method": method}, receive, send)
    headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], headers, json.loads(sent[1]["body"]) if sent[0]["status"] == 503 else {}


async def test_from_death_to_recovery_clients_are_told_state_reason_and_when_to_come_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, second = ScriptedEngine(), ScriptedEngine(start_hangs=True)
    world = World(first, second)
    world.log.reason = "RuntimeError: boom"
    run = asyncio.create_task(world.lifecycle.run())
    await world.until_state(State.SERVING)
    monkeypatch.setattr(last_words, "LAST_WORDS_S", 0.2)
    first.is_dead = True
    told: list[tuple[str, str | None]] = []
    async with asyncio.timeout(10):
        while world.lifecycle.state is not State.RECOVERING:
            status, headers, body = await answer_of(world, "GET")
            if status == 503:
                assert int(headers["retry-after"]) == math.ceil(body["retry_after_s"]) >= 1
                assert headers["content-type"] == "application/json" and body["error"]["message"]
                if (body["state"], body["reason"]) not in told:
                    told.append((body["state"], body["reason"]))
            await asyncio.sleep(0.005)
    assert told == [("dead", None), ("dead", "RuntimeError: boom")]
    _, headers, body = await answer_of(world)
    assert (body["state"], body["reason"]) == ("recovering", "RuntimeError: boom")
    assert "RuntimeError: boom" in body["error"]["message"] and "retry-after" in headers
    await world.lifecycle.stop(0.0)
    await run


async def test_a_failure_is_kept_with_the_time_of_the_recovery_and_a_restart_clears_it() -> None:
    first = ScriptedEngine()
    world = World(first)
    world.log.reason = "RuntimeError: boom"
    run = asyncio.create_task(world.lifecycle.run())
    await world.until_state(State.SERVING)
    first.is_dead = True
    await world.until(lambda: world.lifecycle.failure is not None)
    assert world.lifecycle.failure is not None and world.lifecycle.failure.recovered_at is None
    await world.until(lambda: len(world.made) == 2 and world.lifecycle.state is State.SERVING)
    failure = world.lifecycle.failure
    assert failure.reason == "RuntimeError: boom"
    assert failure.recovered_at is not None and failure.recovered_at >= failure.at
    await world.lifecycle.restart(0.0)
    assert world.lifecycle.failure is None
    await world.lifecycle.stop(0.0)
    await run


@pytest.mark.parametrize("reason", [None, "RuntimeError: boom"])
async def test_ordinary_last_lines_are_never_called_error_lines(reason: str | None) -> None:
    first = ScriptedEngine(by_signal=True)
    world = World(first)
    world.log.reason, world.log.last = reason, ("GET /health 200",)
    run = asyncio.create_task(world.lifecycle.run())
    await world.until_state(State.SERVING)
    first.is_dead = True
    await world.until(lambda: world.lifecycle.failure is not None)
    failure = world.lifecycle.failure
    assert failure is not None
    assert failure.lines == ([reason] if reason else [])
    assert failure.last_lines == ([] if reason else ["GET /health 200"])
    await world.lifecycle.stop(0.0)
    await run


async def test_the_telemetry_is_told_when_an_engine_begins_and_ends_to_serve() -> None:
    first = ScriptedEngine()
    world = World(first)
    run = asyncio.create_task(world.lifecycle.run())
    await world.until_state(State.SERVING)
    assert world.told == ["serving"]
    first.is_dead = True
    await world.until(lambda: len(world.made) == 2 and world.lifecycle.state is State.SERVING)
    assert world.told == ["serving", "gone", "serving"]
    await world.lifecycle.stop(0.0)
    await run


async def test_every_transition_raises_the_state_version() -> None:
    world = World()
    before = world.lifecycle.state_version
    run = asyncio.create_task(world.lifecycle.run())
    await world.until_state(State.SERVING)
    assert world.lifecycle.state_version > before
    await world.lifecycle.stop(0.0)
    await run
