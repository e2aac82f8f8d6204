"""Dials over the life of a host: starts, crashes, switches."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from engine_host.engine import dials as dials_room
from engine_host.live.dial import DialName
from engine_host.profiles import Profile, build_profile
from engine_host.protocol.errors import OperatorError
from engine_host.protocol.methods import DialsSet
from engine_host.protocol.profiles import Tier
from engine_host.protocol.snapshot import State
from engine_host.protocol.switching import Outcome

from .scripted_engine import ScriptedEngine
from .scripted_scheduler import ScriptedScheduler
from .switched_world import fast as fast
from .switched_world import serving, switch
from .world import World

K = DialName.SPECULATIVE_TOKENS


def profile(name: str, dials: dict[str, int] | None = None, **engine: Any) -> Profile:
    content = {"schema": 1, "engine": {"model": "scripted/model", **engine}, "dials": dials or {}}
    return build_profile(content, Path(f"{name}.toml"))


def engine() -> ScriptedEngine:
    return ScriptedEngine(scheduler=ScriptedScheduler())


def applied(made: ScriptedEngine) -> list[dict[DialName, int]]:
    assert isinstance(made.scheduler, ScriptedScheduler)
    return made.scheduler.applied


def two() -> DialsSet:
    return DialsSet(values={"speculative_tokens": 2}, idempotency_key="k")


async def test_dials_alone_are_switched_live_in_the_engine_that_serves(tmp_path: Path) -> None:
    async with serving(engine()) as world:
        result = await switch(world, profile("b", {"speculative_tokens": 1}), tmp_path=tmp_path)
        assert (result.outcome, result.tier) == (Outcome.SWITCHED, Tier.LIVE)
        assert len(world.made) == 1
        assert applied(world.made[0]) == [{K: 1}]
        assert world.lifecycle.dials.read()[K].start == 1


async def test_a_live_switch_beyond_the_range_is_refused_and_the_former_profile_goes_on(tmp_path: Path) -> None:
    async with serving(engine()) as world:
        with pytest.raises(OperatorError, match="this engine takes 0 to 5"):
            await switch(world, profile("b", {"speculative_tokens": 9}), tmp_path=tmp_path)
        assert (world.lifecycle.state, world.lifecycle.profile.name) == (State.SERVING, "a")
        assert applied(world.made[0]) == []


async def test_a_live_switch_that_is_not_answered_goes_back(tmp_path: Path) -> None:
    async with serving(engine()) as world:
        scheduler = world.made[0].scheduler
        assert isinstance(scheduler, ScriptedScheduler)
        scheduler.does_not_answer = True
        result = await switch(world, profile("b", {"speculative_tokens": 1}), tmp_path=tmp_path)
        assert result.outcome is Outcome.ROLLED_BACK
        assert result.text == "the dials of b were not applied: engine core 0 did not answer within 5 s; a goes on"
        assert world.lifecycle.profile.name == "a"


async def test_a_live_switch_that_hangs_can_be_cancelled_and_the_former_values_are_told_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dials_room, "RETRY_S", 0.01)
    async with serving(engine()) as world:
        scheduler = world.made[0].scheduler
        assert isinstance(scheduler, ScriptedScheduler)
        scheduler.may_apply.clear()
        switching = asyncio.create_task(switch(world, profile("b", {"speculative_tokens": 1}), tmp_path=tmp_path))
        await world.until(lambda: world.lifecycle.switch_under_way is not None)
        await asyncio.sleep(0.02)
        await world.lifecycle.cancel_switch("ops")
        assert (await switching).outcome is Outcome.CANCELLED
        scheduler.may_apply.set()
        await world.until(lambda: scheduler.applied == [{K: 5}])
        assert world.lifecycle.profile.name == "a"


async def test_a_new_engine_has_its_dials_before_it_serves(tmp_path: Path) -> None:
    async with serving(engine(), engine()) as world:
        await world.lifecycle.dials.set(two(), "maria")
        await switch(world, profile("b", {"speculative_tokens": 1}, max_num_seqs=4), tmp_path=tmp_path)
        assert applied(world.made[1]) == [{K: 1}]
        assert ("dials.reset", "speculative_tokens 2 → 1: b begins at its own") in world.events


async def test_a_new_engine_that_does_not_take_them_brings_the_former_back_with_what_was_set(tmp_path: Path) -> None:
    async with serving(engine(), engine(), engine()) as world:
        await world.lifecycle.dials.set(two(), "maria")
        result = await switch(world, profile("b", {"speculative_tokens": 9}, max_num_seqs=4), tmp_path=tmp_path)
        assert result.outcome is Outcome.ROLLED_BACK
        assert "this engine takes 0 to 5" in result.text
        assert applied(world.made[2]) == [{K: 2}]
        assert world.lifecycle.dials.read()[K].who == "maria"


async def test_dials_hold_across_a_crash() -> None:
    async with serving(engine(), engine()) as world:
        await world.lifecycle.dials.set(two(), "maria")
        world.made[0].is_dead = True
        await world.until(lambda: len(world.made) == 2 and world.lifecycle.state is State.SERVING)
        assert applied(world.made[1]) == [{K: 2}]


async def test_a_first_start_with_dials_out_of_range_ends_the_host() -> None:
    world = World(engine())
    world.lifecycle._service.profile = profile("a", {"max_active_seqs": 999})
    with pytest.raises(OperatorError, match="this engine takes 1 to 256"):
        await world.lifecycle.run()
    assert world.made[0].stopped_with


async def test_a_stopped_host_has_no_dials_left_to_keep() -> None:
    async with serving(engine()) as world:
        await world.lifecycle.dials.set(two(), "maria")
    assert world.lifecycle.dials.unavailable_reason == "no engine is running"
    await asyncio.sleep(0)
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "dials"]
