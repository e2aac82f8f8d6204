"""The throttle over the life of a host: pauses that are a state, crashes, restarts, switches."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from engine_host.profiles import Profile, build_profile
from engine_host.protocol.methods import PauseParams, ResumeParams, ThrottleSet
from engine_host.protocol.profiles import Tier
from engine_host.protocol.snapshot import State
from engine_host.protocol.switching import Outcome
from tests.unit.gateway.clients import Client, turns
from tests.unit.scripted_engine import ScriptedEngine
from tests.unit.switched_world import OTHER, serving, switch
from tests.unit.switched_world import fast as fast
from tests.unit.throttle.desk import WrittenGate
from tests.unit.world import World


def live_change(name: str = "b", **throttle: Any) -> Profile:
    content = {"schema": 1, "engine": {"model": "scripted/model"}, "throttle": throttle}
    return build_profile(content, Path(f"{name}.toml"))


def watched(world: World) -> WrittenGate:
    """In place of the gate that the throttle has told until now."""
    gate = WrittenGate()
    world.lifecycle.throttle._gate = gate
    world.lifecycle.throttle._applied = None
    world.lifecycle.throttle._put_in_force()
    return gate


def pause(world: World, for_s: float | None = None) -> None:
    world.lifecycle.throttle.pause(PauseParams(for_s=for_s, idempotency_key="k"), "ops")


def resume(world: World) -> None:
    world.lifecycle.throttle.resume(ResumeParams(idempotency_key="k"), "ops")


async def test_a_pause_is_a_state_of_its_own_with_a_version_and_a_moment() -> None:
    async with serving(ScriptedEngine()) as world:
        life = world.lifecycle
        version, since = life.state_version, life.state_since
        pause(world)
        assert (life.state, life.state_version) == (State.PAUSED, version + 1)
        assert life.state_since > since
        pause(world)
        assert life.state_version == version + 1, "nothing has changed"
        resume(world)
        assert (life.state, life.state_version) == (State.SERVING, version + 2)


async def test_a_pause_that_ends_by_itself_is_told_and_the_state_is_back() -> None:
    async with serving(ScriptedEngine()) as world:
        pause(world, for_s=0.02)
        assert world.lifecycle.state is State.PAUSED
        await world.until_state(State.SERVING)
        assert world.events[-1][0] == "throttle.returned" and world.events[-1][1].startswith("resumed: ")
        assert world.states[-1] is State.SERVING, "who hears of it finds it so"


async def test_a_gate_that_drains_is_shown_as_draining_with_what_is_left() -> None:
    async with serving(ScriptedEngine()) as world:
        order = ThrottleSet(limits={"draining": True}, idempotency_key="k")
        world.lifecycle.throttle.set(order, "ops")
        assert world.lifecycle.state is State.DRAINING
        phase, elapsed_s = world.lifecycle.phase
        assert phase == "draining: none in flight, until it is resumed" and elapsed_s is not None
        pause(world)
        assert world.lifecycle.state is State.DRAINING, "the stronger word"
        resume(world)
        assert world.lifecycle.state is State.SERVING and world.lifecycle.phase == (None, None)


async def test_after_a_crash_it_is_paused_still_and_a_limit_goes_on_ending() -> None:
    first = ScriptedEngine()
    async with serving(first) as world:
        gate = watched(world)
        world.lifecycle.throttle.set(ThrottleSet(limits={"max_inflight": 4}, for_s=0.05, idempotency_key="k"), "ops")
        pause(world)
        first.is_dead = True
        await world.until(lambda: len(world.made) == 2 and world.lifecycle.state is State.PAUSED)
        assert {State.DEAD, State.RECOVERING} <= set(world.states)
        kinds = [kind for kind, _ in world.events]
        assert "state.paused" in kinds[kinds.index("engine.died") :]
        assert dict(world.events)["state.paused"].endswith("; still paused at the gate, by hand")
        assert any(kind == "throttle.kept" and "paused (ops" in text for kind, text in world.events)
        await world.until(lambda: gate.limits.max_inflight is None)
        assert gate.limits.paused
        resume(world)
        assert world.lifecycle.state is State.SERVING


async def test_a_limit_that_ends_while_no_engine_runs_is_gone_when_one_does() -> None:
    first = ScriptedEngine()
    async with serving(first, ScriptedEngine(start_hangs=True)) as world:
        gate = watched(world)
        world.lifecycle.throttle.set(ThrottleSet(limits={"max_inflight": 4}, for_s=0.05, idempotency_key="k"), "ops")
        first.is_dead = True
        await world.until_state(State.RECOVERING)
        await world.until(lambda: gate.limits.max_inflight is None)
        assert world.lifecycle.state is State.RECOVERING
        world.made[1]._released.set()
        await world.until(lambda: len(world.made) > 2)


async def test_a_restart_while_paused_works_and_it_is_paused_afterwards() -> None:
    async with serving(ScriptedEngine()) as world:
        pause(world)
        said = await world.lifecycle.restart(0.0)
        assert said.startswith("engine restarted in")
        assert world.lifecycle.state is State.PAUSED
        assert State.DRAINING in world.states


@pytest.mark.parametrize(("to", "tier"), [(OTHER, Tier.RELOAD), (live_change(max_inflight=8), Tier.LIVE)])
async def test_a_switch_while_paused_works_and_it_is_paused_afterwards(to: Profile, tier: Tier, tmp_path: Path) -> None:
    async with serving(ScriptedEngine()) as world:
        pause(world)
        result = await switch(world, to, tmp_path=tmp_path)
        assert (result.outcome, result.tier) == (Outcome.SWITCHED, tier)
        assert world.lifecycle.state is State.PAUSED
        assert any(kind == "throttle.kept" and f"under {to.name} too" in text for kind, text in world.events)


async def test_limits_alone_are_switched_live_in_the_engine_that_serves(tmp_path: Path) -> None:
    async with serving(ScriptedEngine()) as world:
        gate = watched(world)
        engine, to = world.lifecycle.engine, live_change(max_inflight=8, classes=["a", "b"])
        result = await switch(world, to, tmp_path=tmp_path)
        assert (result.outcome, result.tier) == (Outcome.SWITCHED, Tier.LIVE)
        assert world.lifecycle.engine is engine and len(world.made) == 1
        assert gate.limits.max_inflight == 8 and gate.tables[-1].classes == ["a", "b"]
        assert ("throttle.profile", "max_inflight none → 8: as b says") in world.events
        assert world.lifecycle.throttle.sheet().class_names == ["a", "b"]


async def test_a_switch_that_is_rolled_back_has_the_former_profiles_limits(tmp_path: Path) -> None:
    async with serving(ScriptedEngine(), ScriptedEngine(start_error="no")) as world:
        gate = watched(world)
        content = {"schema": 1, "engine": {"model": "scripted/model", "seed": 1}, "throttle": {"max_inflight": 8}}
        result = await switch(world, build_profile(content, Path("c.toml")), tmp_path=tmp_path)
        assert result.outcome is Outcome.ROLLED_BACK
        assert gate.limits.max_inflight is None


async def test_a_host_that_stops_while_paused_stops() -> None:
    async with asyncio.timeout(30):
        async with serving(ScriptedEngine()) as world:
            pause(world, for_s=600)
        assert world.lifecycle.throttle._wake is None


# --- with the gate that a host has, and clients before it -------------------------------------------------------


async def ask(world: World) -> Client:
    client = Client(world.entry, {"prompt": "x"}).start()
    await turns()
    return client


async def test_who_comes_while_it_is_paused_waits_through_a_switch_until_it_is_resumed(tmp_path: Path) -> None:
    async with serving(ScriptedEngine()) as world:
        pause(world)
        client = await ask(world)
        assert world.entry.held == 1
        assert (await switch(world, tmp_path=tmp_path)).outcome is Outcome.SWITCHED
        await turns()
        assert not client.is_done and world.lifecycle.state is State.PAUSED
        resume(world)
        assert (await client.answered()).status == 200


async def test_a_pause_that_ends_by_itself_lets_in_who_waits() -> None:
    async with serving(ScriptedEngine()) as world:
        pause(world, for_s=0.05)
        client = await ask(world)
        assert not client.is_done
        assert (await client.answered()).status == 200


async def test_who_comes_while_the_gate_drains_is_told_so_and_reads_go_on() -> None:
    async with serving(ScriptedEngine()) as world:
        order = ThrottleSet(limits={"draining": True}, for_s=600, idempotency_key="k")
        world.lifecycle.throttle.set(order, "ops")
        client = await (await ask(world)).answered()
        assert client.status == 503 and client.retry_after is not None and client.retry_after > 500
        assert (await Client(world.entry, method="GET", path="/health").start().answered()).status == 200
        assert world.lifecycle.throttle.snapshot().refused_by_reason == {"draining": 1}


async def test_a_profiles_lowest_class_is_in_force_at_the_gate(tmp_path: Path) -> None:
    async with serving(ScriptedEngine()) as world:
        to = live_change(classes=["bulk", "chat"], default_class="bulk", min_class="chat", class_header="x-class")
        await switch(world, to, tmp_path=tmp_path)
        assert (await (await ask(world)).answered()).status == 429
        chat = Client(world.entry, {"prompt": "x"}, headers={"x-class": "chat"}).start()
        assert (await chat.answered()).status == 200
        [bulk_count, chat_count] = world.lifecycle.throttle.sheet().counts.classes
        assert (bulk_count.name, bulk_count.refused_total, chat_count.admitted_total) == ("bulk", 1, 1)
