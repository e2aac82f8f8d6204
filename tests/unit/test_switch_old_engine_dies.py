"""The engine that a switch replaces dies before it has handed over: told at once, and whoever comes waits."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from engine_host.engine import death_watch
from engine_host.engine.port import StepSink
from engine_host.profiles import Profile
from engine_host.protocol.errors import OperatorError
from engine_host.protocol.profiles import Tier
from engine_host.protocol.snapshot import State
from engine_host.protocol.switching import Outcome, SwitchProgress

from .scripted_engine import ScriptedEngine, ScriptedStream
from .switched_world import Checked, Client, serving, switch
from .switched_world import fast as fast
from .world import World

REASON = "the engine core (pid 1234) was killed by SIGKILL"
BESIDE = Checked(fits_beside=True)


@dataclass
class SlowEngine(ScriptedEngine):
    """Starts, or fails to, when it is told to."""

    go_on: asyncio.Event = field(default_factory=asyncio.Event)

    async def start(self, sink: StepSink) -> None:
        await self.go_on.wait()
        await super().start(sink)


def progress(world: World) -> SwitchProgress:
    assert world.lifecycle.switch_under_way is not None
    return world.lifecycle.switch_under_way.progress


def kinds(world: World) -> list[str]:
    return [kind for kind, _ in world.events]


async def dies_beside(world: World, old: ScriptedEngine, new: SlowEngine, tmp_path: Path) -> asyncio.Task[Any]:
    """An overlap switch whose old engine has just been found dead."""
    under_way = asyncio.create_task(switch(world, tmp_path=tmp_path, checked=BESIDE))
    await world.until(lambda: new in world.made)
    old.is_dead = True
    await world.until(lambda: "engine.died" in kinds(world))
    return under_way


async def test_its_death_is_told_and_requests_wait_for_the_new_engine(tmp_path: Path) -> None:
    stream = ScriptedStream("one")
    old, new = ScriptedEngine(by_signal=True, streams=[stream]), SlowEngine()
    async with serving(old, new) as world:
        under_way = await dies_beside(world, old, new, tmp_path)
        assert dict(world.events)["engine.died"] == (
            f"engine died during the switch to b: {REASON}; new requests wait at the gate"
        )
        assert world.lifecycle.state is State.SWITCHING and progress(world).died == REASON
        assert world.lifecycle.failure is not None and world.lifecycle.failure.reason == REASON
        assert world.lifecycle.crashes_in_window == 1
        told = world.lifecycle.just_died()
        assert (told.state, told.reason) == (State.SWITCHING, REASON)
        client = Client(world)
        await world.until(lambda: world.entry.held == 1)
        new.go_on.set()
        result = await under_way
        assert (result.outcome, result.tier, result.held, result.cut_off) == (Outcome.SWITCHED, Tier.OVERLAP, 1, 1)
        assert "the engine of a had died meanwhile" in result.text
        assert await client.status() == 200
        assert world.lifecycle.engine is new and new.computed_ahead_s is None, "there is nothing to ask the dead one"
        assert world.lifecycle.failure.recovered_at is not None
        assert kinds(world).count("engine.died") == 1


async def test_when_the_new_engine_fails_too_the_former_profile_starts_anew_and_answers_those_who_wait(
    tmp_path: Path,
) -> None:
    old, new, again = ScriptedEngine(by_signal=True), SlowEngine(start_error="no room"), SlowEngine()
    async with serving(old, new, again) as world:
        under_way = await dies_beside(world, old, new, tmp_path)
        client = Client(world)
        await world.until(lambda: world.entry.held == 1)
        new.go_on.set()
        await world.until(lambda: again in world.made)
        assert world.entry.held == 1, "nobody is sent away meanwhile"
        again.go_on.set()
        result = await under_way
        assert result.outcome is Outcome.ROLLED_BACK and result.held == 1
        assert "no room; a, which had died meanwhile, serves again" in result.text
        assert await client.status() == 200
        assert world.lifecycle.engine is again and old.stopped_with


async def test_one_that_dies_while_the_next_is_prepared_for_a_reload_gives_way_to_it(tmp_path: Path) -> None:
    old, new = ScriptedEngine(by_signal=True), ScriptedEngine(prepare_hangs=True)
    async with serving(old, new) as world:
        under_way = asyncio.create_task(switch(world, tmp_path=tmp_path))
        await world.until(lambda: new.is_prepared)
        old.is_dead = True
        await world.until(lambda: "engine.died" in kinds(world))
        client = Client(world)
        await world.until(lambda: world.entry.held == 1)
        new.go_on.set()
        result = await under_way
        assert (result.outcome, result.tier, result.held) == (Outcome.SWITCHED, Tier.RELOAD, 1)
        assert await client.status() == 200 and world.lifecycle.engine is new


async def test_when_no_engine_comes_up_at_all_those_who_wait_are_told(tmp_path: Path) -> None:
    old, new, again = ScriptedEngine(by_signal=True), SlowEngine(start_error="first"), ScriptedEngine(start_error="2nd")
    async with serving(old, new, again) as world:
        under_way = await dies_beside(world, old, new, tmp_path)
        client = Client(world)
        await world.until(lambda: world.entry.held == 1)
        new.go_on.set()
        assert (await under_way).outcome is Outcome.FAILED
        assert world.lifecycle.crashes_in_window == 2, "the death, and then none that came up"
        assert await client.status() == 503
        await world.until_state(State.SERVING)


async def test_a_cancel_leads_back_to_the_former_profile_which_starts_again(tmp_path: Path) -> None:
    old, new = ScriptedEngine(by_signal=True), SlowEngine()
    async with serving(old, new) as world:
        under_way = await dies_beside(world, old, new, tmp_path)
        world.lifecycle.cancel_switch("maria")
        result = await under_way
        assert result.outcome is Outcome.CANCELLED
        assert result.text == "maria cancelled the switch to b; a has died meanwhile and starts again"
        await world.until(lambda: len(world.made) == 3 and world.lifecycle.state is State.SERVING)
        assert await Client(world).status() == 200
        assert world.lifecycle.crashes_in_window == 1, "one death, of which the lifecycle heard twice"


async def test_a_stop_answers_those_who_wait(tmp_path: Path) -> None:
    old, new = ScriptedEngine(by_signal=True), SlowEngine()
    world = World(old, new)
    run = asyncio.create_task(world.lifecycle.run())
    await world.until_state(State.SERVING)
    under_way = await dies_beside(world, old, new, tmp_path)
    client = Client(world)
    await world.until(lambda: world.entry.held == 1)
    await world.lifecycle.stop(30.0)
    await run
    assert await client.status() == 503
    with pytest.raises(OperatorError, match="the host is stopping"):
        await under_way


@dataclass
class MuteWhenStopped(ScriptedEngine):
    """Once it is stopped it tells no more that it had died: like vLLM's, which is gone then."""

    async def stop(self, timeout_s: float, *, keep_app: bool = False) -> None:
        await super().stop(timeout_s, keep_app=keep_app)
        self.is_dead = False


async def test_a_death_that_ends_the_drain_is_told_before_the_engine_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(death_watch, "POLL_S", 0.4)  # the drain looks sooner
    old = MuteWhenStopped(by_signal=True, streams=[ScriptedStream("grammar", carryable=False)])
    async with serving(old) as world:
        under_way = asyncio.create_task(switch(world, tmp_path=tmp_path, drain_s=60.0))
        await world.until_state(State.SWITCHING)
        old.is_dead = True
        result = await under_way
        assert (result.outcome, result.cut_off) == (Outcome.SWITCHED, 1)
        assert REASON in dict(world.events)["engine.died"]


@pytest.mark.parametrize("errors", [[], ["no"]])
async def test_a_death_during_the_check_is_told_at_once_and_the_host_serves_again(
    tmp_path: Path, errors: list[str]
) -> None:
    go_on = asyncio.Event()

    async def slow(profile: Profile) -> Checked:
        await go_on.wait()
        return Checked(errors=errors)

    old = ScriptedEngine(by_signal=True)
    async with serving(old) as world:
        under_way = asyncio.create_task(switch(world, tmp_path=tmp_path, preflight=slow))
        await world.until(lambda: world.lifecycle.switch_under_way is not None)
        old.is_dead = True
        await world.until(lambda: "engine.died" in kinds(world))
        client = Client(world)
        await world.until(lambda: world.entry.held == 1)
        go_on.set()
        assert (await under_way).outcome is (Outcome.REFUSED if errors else Outcome.SWITCHED)
        assert await client.status() == (503 if errors else 200)
        await world.until(lambda: world.lifecycle.state is State.SERVING and world.lifecycle.engine is not old)
