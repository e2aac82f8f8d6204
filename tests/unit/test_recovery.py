"""What clients are told between two engines: the time that is left, counted down."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from engine_host.engine.crash_policy import CrashPolicy
from engine_host.engine.host_state import HostState
from engine_host.engine.port import AsgiApp, Receive, Scope, Send
from engine_host.engine.recovery import START_S, Recovery
from engine_host.gateway.entry import Entry
from engine_host.protocol.snapshot import Failure, State
from tests.unit.gateway.clients import Client
from tests.unit.scripted_engine import ScriptedEngine
from tests.unit.world import World


class Clock:
    now = 1_000.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Clock]]:
    monkeypatch.setattr(Clock, "now", 1_000.0)
    monkeypatch.setattr("time.monotonic", lambda: Clock.now)
    yield Clock


class Bench:
    """A start takes 39 s; `elapsed_s` of one is over."""

    def __init__(self) -> None:
        self.elapsed_s: float | None = None
        self.state = HostState(lambda *_, **__: None)
        self.entry = Entry()
        self.recovery = Recovery(self.state, self.entry, CrashPolicy((5.0,)), lambda: 39.0, lambda: self.elapsed_s)


def failure() -> Failure:
    return Failure(at=0.0, reason="boom")


@pytest.mark.parametrize("state", [State.STARTING, State.RECOVERING])
def test_a_start_is_told_by_what_is_left_of_it(clock: type[Clock], state: State) -> None:
    bench = Bench()
    if state is State.RECOVERING:
        bench.recovery.failure = failure()
    told = bench.recovery.starting(state)
    for elapsed_s, left_s in ((0.0, 39.0), (20.0, 19.0), (38.5, 1.0), (49.0, 10.0)):
        clock.now = 1_000.0 + elapsed_s
        assert told.left_s == left_s


def test_so_is_a_death_from_when_it_was_first_seen(clock: type[Clock]) -> None:
    recovery = Bench().recovery
    assert recovery.just_died().left_s == 39.0
    clock.now += 3.0
    assert recovery.just_died().left_s == 36.0
    recovery.recovered()
    clock.now += 500.0
    assert recovery.just_died().left_s == 39.0, "the next engine's own death"


def test_a_death_in_a_switch_is_told_by_the_start_that_is_under_way(clock: type[Clock]) -> None:
    bench = Bench()
    bench.state.enter(State.SWITCHING, "")
    bench.recovery.lost(failure(), "b")
    bench.elapsed_s = 30.0
    told = bench.recovery.just_died()
    assert (told.state, told.left_s) == (State.SWITCHING, 9.0)


def test_after_a_crash_the_pause_and_the_start_count_down(clock: type[Clock]) -> None:
    bench = Bench()
    bench.recovery.crashed("engine.died", "engine died", failure(), had_served=True)
    assert bench.entry._why.left_s == 44.0
    clock.now += 4.0
    assert bench.entry._why.left_s == 40.0


def test_where_the_host_has_given_up_it_cannot_be_back_before_a_start(clock: type[Clock]) -> None:
    bench = Bench()
    for _ in range(3):
        bench.recovery.crashed("engine.died", "engine died", failure(), had_served=True)
    clock.now += 500.0
    assert "not restarted" in bench.entry._why.message and bench.entry._why.left_s == 39.0


async def _is_told(world: World, seconds: float) -> bool:
    """Or a little less, on a machine that is slow."""
    told = (await Client(world.entry, {"prompt": "x"}).start().answered()).retry_after
    return told is not None and seconds - 5 <= told <= seconds


async def test_the_drain_of_a_restart_is_told_with_the_start_that_follows() -> None:
    release = asyncio.Event()
    first, second = ScriptedEngine(), ScriptedEngine(start_hangs=True)
    world = World(first, second)
    run = asyncio.create_task(world.lifecycle.run())
    await world.until_state(State.SERVING)
    world.entry.attach(_waits_for(release))
    client = Client(world.entry, {"prompt": "x"}).start()
    await world.until(lambda: world.entry.inflight == 1)
    restart = asyncio.create_task(world.lifecycle.restart(20.0))
    await world.until_state(State.DRAINING)
    assert await _is_told(world, 20 + START_S)
    release.set()
    await client.answered()
    await world.until_state(State.STARTING)
    assert await _is_told(world, START_S)
    await world.lifecycle.stop(0.0)
    await asyncio.gather(restart, return_exceptions=True)
    await run


async def test_a_stop_that_takes_over_the_drain_is_told_as_that() -> None:
    release = asyncio.Event()
    world = World(ScriptedEngine())
    run = asyncio.create_task(world.lifecycle.run())
    await world.until_state(State.SERVING)
    world.entry.attach(_waits_for(release))
    client = Client(world.entry, {"prompt": "x"}).start()
    await world.until(lambda: world.entry.inflight == 1)
    restart = asyncio.create_task(world.lifecycle.restart(20.0))
    await world.until_state(State.DRAINING)
    stop = asyncio.create_task(world.lifecycle.stop(12.0))
    await world.until(lambda: restart.done())
    assert await _is_told(world, 12)
    release.set()
    await client.answered()
    await asyncio.gather(restart, return_exceptions=True)
    await stop
    await run


def _waits_for(release: asyncio.Event) -> AsgiApp:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await release.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})

    return app
