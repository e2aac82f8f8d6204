"""What comes in between while a profile is switched: a cancel, a stop, another switch, a death, a mistake of ours."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from engine_host.engine import carriage
from engine_host.engine.port import STOPPED
from engine_host.profiles import Profile
from engine_host.protocol.errors import EXIT_REFUSED, OperatorError
from engine_host.protocol.snapshot import State
from engine_host.protocol.switching import Outcome

from .scripted_engine import ScriptedEngine, ScriptedStream
from .switched_world import OTHER, OTHER_MODEL, Checked, serving, switch
from .switched_world import fast as fast
from .world import World, hold_request


async def test_a_switch_can_be_cancelled_until_the_old_engine_hands_over(tmp_path: Path) -> None:
    stuck = ScriptedStream("grammar", carryable=False)
    old = ScriptedEngine(streams=[stuck])
    async with serving(old) as world:
        under_way = asyncio.create_task(switch(world, tmp_path=tmp_path, drain_s=60.0))
        await world.until_state(State.SWITCHING)
        result = await world.lifecycle.cancel_switch("maria")
        assert result is await under_way and result.outcome is Outcome.CANCELLED
        assert result.text == "maria cancelled the switch to b; a goes on"
        assert ("switch.cancelled", result.text) in world.events
        assert world.lifecycle.engine is old and world.lifecycle.state is State.SERVING
        assert stuck.ended_with is None and all(engine.stopped_with for engine in world.made[1:])
        with pytest.raises(OperatorError, match="no switch is under way"):
            world.lifecycle.cancel_switch("maria")


async def test_a_cancel_while_the_new_engine_is_prepared_leaves_the_old_one_as_it_was(tmp_path: Path) -> None:
    stream = ScriptedStream("one")
    old, new = ScriptedEngine(streams=[stream], has_metrics=False), ScriptedEngine(prepare_hangs=True)
    async with serving(old, new) as world:
        under_way = asyncio.create_task(switch(world, tmp_path=tmp_path))
        await world.until(lambda: new.is_prepared)
        world.lifecycle.cancel_switch("maria")
        assert (await under_way).outcome is Outcome.CANCELLED
        assert world.lifecycle.engine is old and old.streams == [stream]
        assert new.stopped_with == [0.0] and old.has_metrics


async def test_a_cancel_in_the_drain_ends_the_engine_that_was_prepared(tmp_path: Path) -> None:
    stuck = ScriptedStream("grammar", carryable=False)
    old, new = ScriptedEngine(streams=[stuck]), ScriptedEngine()
    async with serving(old, new) as world:
        under_way = asyncio.create_task(switch(world, tmp_path=tmp_path, drain_s=60.0))
        await world.until_state(State.SWITCHING)
        await world.until(lambda: world.lifecycle.switch_under_way.progress.phases[-1].name == "carry")
        world.lifecycle.cancel_switch("maria")
        assert (await under_way).outcome is Outcome.CANCELLED
        assert new.stopped_with == [0.0] and world.lifecycle.engine is old and not stuck.ended_with


async def test_a_switch_asked_for_in_the_instant_of_a_stop_is_refused(tmp_path: Path) -> None:
    world = World()
    run = asyncio.create_task(world.lifecycle.run())
    await world.until_state(State.SERVING)
    release = asyncio.Event()
    request = asyncio.create_task(hold_request(world.entry, release))
    await world.until(lambda: world.entry.inflight == 1)
    stop = asyncio.create_task(world.lifecycle.stop(30.0))
    await asyncio.sleep(0)
    assert world.lifecycle.state is State.SERVING
    with pytest.raises(OperatorError, match="already drains for a stop") as caught:
        await switch(world, tmp_path=tmp_path)
    assert caught.value.exit_code == EXIT_REFUSED
    release.set()
    await asyncio.gather(stop, run, request)


async def test_a_stop_during_a_switch_ends_both(tmp_path: Path) -> None:
    hangs = ScriptedEngine(start_hangs=True)
    stream = ScriptedStream("one")
    world = World(ScriptedEngine(streams=[stream]), hangs)
    run = asyncio.create_task(world.lifecycle.run())
    await world.until_state(State.SERVING)
    under_way = asyncio.create_task(switch(world, tmp_path=tmp_path))
    await world.until(lambda: hangs.sink is not None)  # it starts: the old one has handed over
    async with asyncio.timeout(30):
        await world.lifecycle.stop(30.0)
        await run
    with pytest.raises(OperatorError, match="the host is stopping"):
        await under_way
    assert hangs.stopped_with
    assert stream.ended_with == STOPPED, "no word of the new engine: the stop ended it"


async def test_a_second_switch_is_refused_naming_who_and_since_when(tmp_path: Path) -> None:
    go_on = asyncio.Event()

    async def slow(profile: Profile) -> Checked:
        await go_on.wait()
        return Checked()

    async with serving() as world:
        first = asyncio.create_task(switch(world, tmp_path=tmp_path, preflight=slow))
        await world.until(lambda: world.lifecycle.switch_under_way is not None)
        with pytest.raises(OperatorError, match=r"ops switches to b since \d\d:\d\d:\d\d") as caught:
            await switch(world, OTHER_MODEL, tmp_path=tmp_path)
        assert caught.value.exit_code == EXIT_REFUSED
        go_on.set()
        assert (await first).outcome is Outcome.SWITCHED


async def test_a_dead_host_can_be_switched_to_a_profile_that_works(tmp_path: Path) -> None:
    engines = [ScriptedEngine(is_dead=True) for _ in range(3)]
    world = World(*engines)
    run = asyncio.create_task(world.lifecycle.run())
    await world.until(lambda: any("giving up" in text for _, text in world.events))
    result = await switch(world, tmp_path=tmp_path)
    assert result.outcome is Outcome.SWITCHED and world.lifecycle.state is State.SERVING
    await world.lifecycle.stop(0.0)
    await run


async def test_a_refused_switch_of_a_crashed_host_does_not_call_off_its_restart(tmp_path: Path) -> None:
    world = World(ScriptedEngine(is_dead=True), ScriptedEngine(), pause_s=0.2)
    run = asyncio.create_task(world.lifecycle.run())
    await world.until(lambda: world.lifecycle.restart_in_s is not None)
    result = await switch(world, tmp_path=tmp_path, checked=Checked(errors=["no"]))
    assert result.outcome is Outcome.REFUSED
    await world.until_state(State.SERVING)
    await world.lifecycle.stop(0.0)
    await run


async def test_a_switch_of_a_dead_host_can_be_cancelled_while_the_engine_starts(tmp_path: Path) -> None:
    hangs = ScriptedEngine(start_hangs=True)
    world = World(*(ScriptedEngine(is_dead=True) for _ in range(3)), hangs)
    run = asyncio.create_task(world.lifecycle.run())
    await world.until(lambda: any("giving up" in text for _, text in world.events))
    under_way = asyncio.create_task(switch(world, tmp_path=tmp_path))
    await world.until(lambda: len(world.made) == 4)
    world.lifecycle.cancel_switch("maria")
    async with asyncio.timeout(10):
        assert (await under_way).outcome is Outcome.CANCELLED
    assert hangs.stopped_with and world.lifecycle.state is State.DEAD
    await world.lifecycle.stop(0.0)
    await run


async def test_a_cancel_that_comes_as_the_drain_ends_is_not_lost(tmp_path: Path) -> None:
    stream = ScriptedStream("grammar", carryable=False)
    old = ScriptedEngine(streams=[stream])
    async with serving(old) as world:
        under_way = asyncio.create_task(switch(world, tmp_path=tmp_path, drain_s=60.0))
        await world.until_state(State.SWITCHING)
        handling = old.handling

        def cancelled_at_the_end(bound: Any) -> Any:
            if not old.streams and world.lifecycle.switch_under_way.can_cancel:
                world.lifecycle.cancel_switch("maria")
            return handling(bound)

        old.handling = cancelled_at_the_end
        old.streams.clear()
        assert (await under_way).outcome is Outcome.CANCELLED
        assert world.lifecycle.engine is old


@pytest.mark.parametrize("fits_beside", [False, True])
async def test_a_new_engine_that_dies_as_it_takes_over_rolls_back_and_the_streams_go_on(
    tmp_path: Path, fits_beside: bool
) -> None:
    stream = ScriptedStream("one")
    old, again = ScriptedEngine(streams=[stream]), ScriptedEngine()
    dies = ScriptedEngine(adopt_error="the engine core died")
    async with serving(old, dies, again) as world:
        result = await switch(world, tmp_path=tmp_path, checked=Checked(fits_beside=fits_beside))
        assert result.outcome is Outcome.ROLLED_BACK and "the engine core died" in result.text
        assert stream.went_on_in == [again] and stream.ended_with is None
        assert dies.stopped_with and old.stopped_with and old.successor is again
        assert world.lifecycle.profile.name == "a" and world.lifecycle.state is State.SERVING


async def test_a_key_that_only_the_start_finds_wrong_rolls_back(tmp_path: Path) -> None:
    again = ScriptedEngine()
    async with serving(ScriptedEngine(), ScriptedEngine(refusal="unknown key engine.tiger"), again) as world:
        result = await switch(world, tmp_path=tmp_path)
        assert result.outcome is Outcome.ROLLED_BACK and "unknown key engine.tiger" in result.text
        assert world.lifecycle.engine is again and world.lifecycle.state is State.SERVING


@pytest.mark.parametrize("method", ["handling", "hand_over", "succeed"])
async def test_a_mistake_of_ours_ends_the_switch_and_not_the_host(tmp_path: Path, method: str) -> None:
    old = ScriptedEngine(streams=[ScriptedStream("one")])

    def broken(*_: Any) -> Any:
        raise KeyError("x")

    setattr(old, method, broken)
    async with serving(old) as world:
        result = await switch(world, tmp_path=tmp_path)
        assert result.outcome in (Outcome.ROLLED_BACK, Outcome.FAILED) and "KeyError" in result.text
        await world.until_state(State.SERVING)
        assert world.lifecycle.profile.name == "a" and not world.entry.held
        assert sum(not engine.stopped_with for engine in world.made) == 1, "no engine but the one that serves"


async def test_a_check_that_breaks_leaves_what_serves_alone(tmp_path: Path) -> None:
    async def breaks(profile: Profile) -> Checked:
        raise OSError("disk")

    old = ScriptedEngine()
    async with serving(old) as world:
        result = await switch(world, tmp_path=tmp_path, preflight=breaks)
        assert result.outcome is Outcome.ROLLED_BACK and "OSError" in result.text
        assert world.lifecycle.engine is old and world.lifecycle.state is State.SERVING


async def test_a_stop_during_a_switch_answers_whoever_waits_at_the_gate_or_in_the_old_app(tmp_path: Path) -> None:
    old = ScriptedEngine()
    old.successor = old
    world = World(old, ScriptedEngine(start_hangs=True))
    run = asyncio.create_task(world.lifecycle.run())
    await world.until_state(State.SERVING)
    under_way = asyncio.create_task(switch(world, tmp_path=tmp_path))
    await world.until(lambda: len(world.made) == 2)
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    waits = asyncio.create_task(world.entry({"type": "http", "method": "POST"}, asyncio.Event().wait, send))
    await world.until(lambda: world.entry.held == 1)
    await world.lifecycle.stop(30.0)
    await run
    async with asyncio.timeout(10):
        await waits
    assert sent[0]["status"] == 503 and b"stopping" in sent[1]["body"]
    assert old.successor is None, "what its app still sends ends"
    with pytest.raises(OperatorError, match="the host is stopping"):
        await under_way


async def test_who_stops_waiting_for_a_switch_does_not_end_it(tmp_path: Path) -> None:
    async with serving() as world:
        go_on = asyncio.Event()

        async def slow(profile: Profile) -> Checked:
            await go_on.wait()
            return Checked()

        waiting = asyncio.create_task(switch(world, tmp_path=tmp_path, preflight=slow))
        await world.until(lambda: world.lifecycle.switch_under_way is not None)
        waiting.cancel()
        await asyncio.wait({waiting})
        assert world.lifecycle.switch_under_way is not None
        go_on.set()
        await world.until(lambda: world.lifecycle.last_switch is not None)
        assert world.lifecycle.profile is OTHER and world.lifecycle.switch_under_way is None


async def test_no_gap_is_told_when_no_token_came(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(carriage, "_FIRST_TOKEN_S", 0.05)
    async with serving(ScriptedEngine(streams=[ScriptedStream("one")]), ScriptedEngine(is_mute=True)) as world:
        result = await switch(world, tmp_path=tmp_path)
        assert (result.outcome, result.carried, result.gap_s) == (Outcome.SWITCHED, 1, None)


async def test_streams_too_long_for_the_new_engine_do_not_count_as_carried(tmp_path: Path) -> None:
    short, long = ScriptedStream("short"), ScriptedStream("long", is_too_long=True)
    async with serving(ScriptedEngine(streams=[short, long])) as world:
        result = await switch(world, tmp_path=tmp_path)
        assert (result.carried, result.cut_off) == (1, 1)
        assert long.ended_with is not None and "too long" in long.ended_with


async def test_a_mistake_after_the_release_leaves_the_new_engine_serving_and_ends_the_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(self: carriage.Carriage, first_token: asyncio.Event) -> None:
        raise KeyError("x")

    monkeypatch.setattr(carriage.Carriage, "measure_gap", broken)
    old, new = ScriptedEngine(streams=[ScriptedStream("one")]), ScriptedEngine()
    async with serving(old, new) as world:
        result = await switch(world, tmp_path=tmp_path, checked=Checked(fits_beside=True))
        assert result.outcome is Outcome.SWITCHED and "KeyError" in result.text
        assert world.lifecycle.engine is new and not new.stopped_with and old.stopped_with
        await world.until(lambda: old.is_app_closed)


async def test_who_hung_up_while_no_engine_ran_is_forgotten(tmp_path: Path) -> None:
    stays, left = ScriptedStream("stays"), ScriptedStream("left", is_given_up=True)
    new = ScriptedEngine()
    async with serving(ScriptedEngine(streams=[stays, left]), new) as world:
        result = await switch(world, tmp_path=tmp_path)
        assert (result.carried, result.cut_off) == (1, 0)
        assert stays.went_on_in == [new] and not left.went_on_in


async def test_a_cancel_while_the_new_engine_computes_ahead_leaves_the_old_one_as_it_was(tmp_path: Path) -> None:
    stream = ScriptedStream("one")
    old, new = ScriptedEngine(streams=[stream]), ScriptedEngine(ahead_hangs=True)
    async with serving(old, new) as world:
        under_way = asyncio.create_task(switch(world, tmp_path=tmp_path, checked=Checked(fits_beside=True)))
        await world.until(lambda: new.computed_ahead_s is not None)
        world.lifecycle.cancel_switch("maria")
        result = await under_way
        assert result.outcome is Outcome.CANCELLED
        assert world.lifecycle.engine is old and old.streams == [stream]
        assert new.stopped_with == [0.0] and old.has_metrics
