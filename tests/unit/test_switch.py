"""The hot switch on engines that fail on demand: every tier, every way to fail, nothing lost."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from engine_host.engine.timeline import PhaseTimes
from engine_host.protocol.profiles import Tier
from engine_host.protocol.snapshot import State
from engine_host.protocol.switching import Outcome, PhaseName, SwitchResult

from .scripted_engine import ScriptedEngine, ScriptedStream
from .switched_world import OTHER, OTHER_MODEL, Checked, Client, serving, switch
from .switched_world import fast as fast
from .world import World


def names(result: SwitchResult) -> list[PhaseName]:
    return [phase.name for phase in result.phases]


async def test_a_kv_cache_too_small_for_the_new_profile_is_told_with_the_length_that_fits(tmp_path: Path) -> None:
    async with serving(ScriptedEngine(), ScriptedEngine(start_error="Engine core initialization failed.")) as world:
        world.log.reason = (
            "ValueError: To serve at least one request with the model's max seq len (8192), (1.5 GiB KV cache is "
            "needed, which is larger than the available KV cache memory (0.75 GiB). Based on the available memory, "
            "the estimated maximum model length is 4,096. Try increasing `gpu_memory_utilization`."
        )
        result = await switch(world, tmp_path=tmp_path)
        assert result.outcome is Outcome.ROLLED_BACK
        assert "set max_model_len = 4096 or less, or raise gpu_memory_utilization" in result.text
        assert result.lines == [world.log.reason], "vLLM's own words stay beside it"


async def test_a_reload_carries_the_streams_and_tells_each_phase(tmp_path: Path) -> None:
    streams = [ScriptedStream("one"), ScriptedStream("two")]
    old, new = ScriptedEngine(streams=list(streams)), ScriptedEngine()
    async with serving(old, new) as world:
        result = await switch(world, tmp_path=tmp_path)
        assert (result.outcome, result.tier, result.carried) == (Outcome.SWITCHED, Tier.RELOAD, 2)
        assert names(result) == ["preflight", "prepare", "hold", "carry", "stop", "start", "probe", "release"]
        assert result.gap_s is not None and result.gap_s < 5
        assert all(stream.went_on_in == [new] for stream in streams)
        assert old.stopped_with and old.successor is new
        assert world.lifecycle.profile is OTHER
        await world.until(lambda: old.is_app_closed)
        assert world.states.count(State.SWITCHING) == 1
        assert list(world.data["switch.switched"]["phases"]) == names(result)


async def test_a_reload_prepares_the_new_engine_while_the_old_one_serves(tmp_path: Path) -> None:
    stream = ScriptedStream("one")
    old, new = ScriptedEngine(streams=[stream]), ScriptedEngine(prepare_hangs=True)
    async with serving(old, new) as world:
        under_way = asyncio.create_task(switch(world, tmp_path=tmp_path))
        await world.until(lambda: new.is_prepared)
        assert world.lifecycle.engine is old and old.streams == [stream] and not old.stopped_with
        assert await Client(world).status() == 200, "nobody waits at the gate yet"
        new.go_on.set()
        result = await under_way
        assert result.outcome is Outcome.SWITCHED and stream.went_on_in == [new]
        assert world.made == [old, new] and world.lifecycle.generation == 2, "one start, in two parts"


async def test_a_reload_whose_engine_cannot_be_prepared_leaves_the_old_one_serving_untouched(tmp_path: Path) -> None:
    stream = ScriptedStream("one")
    old, broken = ScriptedEngine(streams=[stream]), ScriptedEngine(prepare_error="no such architecture")
    async with serving(old, broken) as world:
        result = await switch(world, tmp_path=tmp_path)
        assert (result.outcome, result.gap_s) == (Outcome.ROLLED_BACK, None)
        assert result.text == "b did not start beside a, which goes on: no such architecture"
        assert world.lifecycle.engine is old and old.streams == [stream] and not old.stopped_with
        assert broken.stopped_with and world.lifecycle.state is State.SERVING


async def test_without_an_old_engine_there_is_nothing_to_prepare_beside(tmp_path: Path) -> None:
    new = ScriptedEngine()
    world = World(ScriptedEngine(), ScriptedEngine(start_error="x"), new, pause_s=60.0)
    run = asyncio.create_task(world.lifecycle.run())
    await world.until_state(State.SERVING)
    world.made[0].is_dead = True
    await world.until_state(State.DEAD)
    await world.until(lambda: world.lifecycle.engine is None)
    world.engines = [new]
    result = await switch(world, tmp_path=tmp_path)
    assert result.outcome is Outcome.SWITCHED and not new.is_prepared and "prepare" not in names(result)
    await world.lifecycle.stop(0.0)
    await run


async def test_an_overlap_starts_the_new_engine_before_it_touches_the_old(tmp_path: Path) -> None:
    stream = ScriptedStream("one")
    old, new = ScriptedEngine(streams=[stream]), ScriptedEngine()
    async with serving(old, new) as world:
        result = await switch(world, tmp_path=tmp_path, checked=Checked(fits_beside=True))
        assert (result.outcome, result.tier) == (Outcome.SWITCHED, Tier.OVERLAP)
        assert names(result) == ["preflight", "start", "probe", "warm", "hold", "carry", "release", "stop"]
        assert stream.went_on_in == [new]
        assert world.told == ["serving", "serving"]
        assert new.computed_ahead_s is not None and result.phases[3].note == "1 computed ahead"


async def test_the_old_engine_of_an_overlap_ends_while_the_new_one_takes_over(tmp_path: Path) -> None:
    """Its idle processes take time from the new ones on the same cores."""
    stream = ScriptedStream("one")
    old, new = ScriptedEngine(streams=[stream]), ScriptedEngine()
    async with serving(old, new) as world:
        adopt = new.adopt

        async def adopts_when_it_has_ended(*arguments: Any) -> Any:
            await world.until(lambda: bool(old.stopped_with))
            return await adopt(*arguments)

        new.adopt = adopts_when_it_has_ended  # type: ignore[method-assign]
        result = await switch(world, tmp_path=tmp_path, checked=Checked(fits_beside=True))
        assert result.outcome is Outcome.SWITCHED and stream.went_on_in == [new]
        assert len(old.stopped_with) == 1


async def test_only_live_settings_change_without_touching_the_engine(tmp_path: Path) -> None:
    from engine_host.profiles import build_profile

    live = build_profile(
        {"schema": 1, "engine": {"model": "scripted/model"}, "switch": {"drain_timeout_s": 5}}, Path("d.toml")
    )
    engine = ScriptedEngine()
    async with serving(engine) as world:
        result = await switch(world, live, tmp_path=tmp_path)
        assert (result.outcome, result.tier) == (Outcome.SWITCHED, Tier.LIVE)
        assert world.lifecycle.engine is engine and world.lifecycle.profile is live
        assert world.states.count(State.SWITCHING) == 0
        assert world.told == ["serving"]


async def test_the_running_profile_changes_nothing(tmp_path: Path) -> None:
    async with serving() as world:
        result = await switch(world, world.lifecycle.profile, tmp_path=tmp_path)
        assert result.outcome is Outcome.UNCHANGED
        assert len(world.made) == 1


async def test_a_profile_that_fails_its_preflight_touches_nothing(tmp_path: Path) -> None:
    async with serving() as world:
        result = await switch(world, tmp_path=tmp_path, checked=Checked(errors=["40 GiB needed, 12 free"]))
        assert result.outcome is Outcome.REFUSED and "40 GiB needed" in result.text
        assert len(world.made) == 1 and world.lifecycle.profile.name == "a"
        assert world.lifecycle.state is State.SERVING


@pytest.mark.parametrize(
    "broken", [ScriptedEngine(start_error="out of memory"), ScriptedEngine(probe_error="no token")]
)
async def test_a_new_engine_that_fails_rolls_back_and_the_streams_go_on(tmp_path: Path, broken: ScriptedEngine) -> None:
    stream = ScriptedStream("one")
    old, again = ScriptedEngine(streams=[stream]), ScriptedEngine()
    async with serving(old, broken, again) as world:
        result = await switch(world, tmp_path=tmp_path)
        assert result.outcome is Outcome.ROLLED_BACK
        assert "out of memory" in result.text or "no token" in result.text
        assert stream.went_on_in == [again] and stream.ended_with is None
        assert world.lifecycle.profile.name == "a" and world.lifecycle.state is State.SERVING
        assert broken.stopped_with
        assert PhaseName.ROLLBACK in names(result)


async def test_an_overlap_that_fails_leaves_the_old_engine_serving_untouched(tmp_path: Path) -> None:
    stream = ScriptedStream("one")
    old, broken = ScriptedEngine(streams=[stream]), ScriptedEngine(start_error="no room")
    old.has_metrics = False
    async with serving(old, broken) as world:
        result = await switch(world, tmp_path=tmp_path, checked=Checked(fits_beside=True))
        assert result.outcome is Outcome.ROLLED_BACK and "no room" in result.text
        assert world.lifecycle.engine is old and old.streams == [stream] and not old.stopped_with
        assert old.has_metrics


async def test_the_deadline_of_a_start_counts_its_preparation(tmp_path: Path) -> None:
    from engine_host.profiles import build_profile

    impatient = build_profile(
        {"schema": 1, "engine": {"model": "scripted/model", "seed": 1}, "switch": {"start_deadline_s": 1}},
        Path("e.toml"),
    )
    old, hangs = ScriptedEngine(), ScriptedEngine(prepare_hangs=True)
    async with serving(old, hangs) as world:
        result = await switch(world, impatient, tmp_path=tmp_path)
        assert result.outcome is Outcome.ROLLED_BACK and "within 1 s" in result.text
        assert hangs.stopped_with and world.lifecycle.engine is old


async def test_a_start_past_its_deadline_rolls_back(tmp_path: Path) -> None:
    from engine_host.profiles import build_profile

    impatient = build_profile(
        {"schema": 1, "engine": {"model": "scripted/model", "seed": 1}, "switch": {"start_deadline_s": 1}},
        Path("e.toml"),
    )
    hangs, again = ScriptedEngine(start_hangs=True), ScriptedEngine()
    async with serving(ScriptedEngine(), hangs, again) as world:
        result = await switch(world, impatient, tmp_path=tmp_path)
        assert result.outcome is Outcome.ROLLED_BACK and "within 1 s" in result.text
        assert hangs.stopped_with and world.lifecycle.engine is again


async def test_when_not_even_the_old_profile_comes_back_the_host_says_so_and_tries_again(tmp_path: Path) -> None:
    stream = ScriptedStream("one")
    old = ScriptedEngine(streams=[stream])
    engines = [old, ScriptedEngine(start_error="first"), ScriptedEngine(start_error="second"), ScriptedEngine()]
    async with serving(*engines) as world:
        result = await switch(world, tmp_path=tmp_path)
        assert result.outcome is Outcome.FAILED and "first" in result.text and "second" in result.text
        assert stream.ended_with is not None and "no engine" in stream.ended_with
        await world.until(lambda: world.lifecycle.state is State.SERVING)
        assert world.lifecycle.profile.name == "a"


async def test_a_former_profile_that_comes_up_and_gives_no_token_is_not_left_behind(tmp_path: Path) -> None:
    mute = ScriptedEngine(probe_error="no token")
    async with serving(ScriptedEngine(), ScriptedEngine(start_error="first"), mute, ScriptedEngine()) as world:
        result = await switch(world, tmp_path=tmp_path)
        assert result.outcome is Outcome.FAILED
        assert mute.stopped_with
        await world.until(lambda: world.lifecycle.state is State.SERVING)


def draining_note(world: World) -> str:
    """What the switch under way says of its carry phase."""
    assert world.lifecycle.switch_under_way is not None
    phases = world.lifecycle.switch_under_way.progress.phases
    return next((phase.note for phase in phases if phase.name is PhaseName.CARRY), "")


async def test_who_waited_in_an_earlier_switch_is_not_counted_in_one_that_ends_before_it_holds(tmp_path: Path) -> None:
    async with serving(ScriptedEngine(), ScriptedEngine()) as world:
        world.entry.held_total = 3  # as the switch before left it
        refused = await switch(world, tmp_path=tmp_path, checked=Checked(errors=["no"]))
        assert (refused.outcome, refused.held) == (Outcome.REFUSED, 0)


async def test_what_cannot_be_carried_is_drained_first(tmp_path: Path) -> None:
    stream = ScriptedStream("grammar", carryable=False)
    old = ScriptedEngine(streams=[stream])
    async with serving(old) as world:
        under_way = asyncio.create_task(switch(world, tmp_path=tmp_path, drain_s=10.0))
        await world.until_state(State.SWITCHING)
        assert not old.stopped_with
        await world.until(lambda: draining_note(world))
        assert re.fullmatch("draining 1, (9|10) s at most; carrying 0", draining_note(world))
        old.streams.remove(stream)  # it has finished
        result = await under_way
        assert (result.drained, result.carried, stream.ended_with) == (1, 0, None)


async def test_past_the_drain_time_it_is_replayed_if_nothing_was_sent_else_it_ends_clearly(tmp_path: Path) -> None:
    unsent = ScriptedStream("unsent", carryable=False, untouched=True)
    sent = ScriptedStream("sent", carryable=False)
    new = ScriptedEngine()
    async with serving(ScriptedEngine(streams=[unsent, sent]), new) as world:
        result = await switch(world, tmp_path=tmp_path, drain_s=0.05)
        assert (result.replayed, result.carried) == (1, 0)
        assert unsent.went_on_in == [new] and unsent.is_replayed
        assert sent.ended_with is not None and "Send it again" in sent.ended_with
        assert result.cut_off == 1 and ", 1 cut off, 1 streams carried" in result.text
        [carry] = [phase for phase in result.phases if phase.name is PhaseName.CARRY]
        assert carry.note == "1 cut off, 1 begun again"


async def test_nothing_is_carried_into_another_model(tmp_path: Path) -> None:
    stream = ScriptedStream("one")
    async with serving(ScriptedEngine(streams=[stream])) as world:
        result = await switch(world, OTHER_MODEL, tmp_path=tmp_path, drain_s=0.05)
        assert result.outcome is Outcome.SWITCHED and result.carried == 0
        assert stream.ended_with is not None and "engine.tokenizer changes" in stream.ended_with


async def test_requests_wait_at_the_gate_during_a_switch_and_are_answered_by_the_new_engine(tmp_path: Path) -> None:
    stuck = ScriptedStream("grammar", carryable=False)
    old = ScriptedEngine(streams=[stuck])
    async with serving(old) as world:
        under_way = asyncio.create_task(switch(world, tmp_path=tmp_path, drain_s=60.0))
        await world.until_state(State.SWITCHING)
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        never = asyncio.Event()
        messages = [{"type": "http.request", "body": b"{}", "more_body": False}]

        async def receive() -> Any:
            if messages:
                return messages.pop()
            return await never.wait()

        async def hangs_up() -> Any:
            return {"type": "http.disconnect"}

        scope = {"type": "http", "method": "POST"}
        waits = asyncio.create_task(world.entry(scope, receive, send))
        leaves = asyncio.create_task(world.entry(scope, hangs_up, send))
        await leaves
        await world.until(lambda: world.entry.held == 1)
        assert not sent and not waits.done()
        old.streams.clear()
        result = await under_way
        await waits
        assert sent[0]["status"] == 200
        assert result.held == 2 and world.entry.held == 0


async def test_the_next_switch_to_the_same_profile_is_forecast_from_this_one(tmp_path: Path) -> None:
    async with serving() as world:
        await switch(world, tmp_path=tmp_path)
        expected = PhaseTimes(tmp_path / "times.json").expected(OTHER.digest, Tier.RELOAD)
        assert set(expected) == {"preflight", "prepare", "hold", "carry", "stop", "start", "probe", "release"}


@pytest.mark.parametrize("is_broken", [False, True], ids=["switched", "rolled-back"])
async def test_reads_are_answered_from_the_first_phase_of_a_reload_to_its_last(tmp_path: Path, is_broken: bool) -> None:
    """Also while no engine runs: the node is to stay in its balancer, and its requests wait."""
    old, new = ScriptedEngine(), ScriptedEngine(probe_error="no token" if is_broken else None)
    async with serving(old, new) as world:
        asked = dict[str, list[int]]()

        async def ask(phase: str) -> None:
            for path in ("/health", "/metrics", "/v1/models", "/version"):
                asked.setdefault(phase, []).append(await Client(world, "GET", path).status())

        probe, start, stop = new.probe, new.start, old.stop

        async def starts(sink: Any) -> None:
            assert world.lifecycle.engine is None
            waits = Client(world)
            await world.until(lambda: world.entry.held == 1)
            await ask("start")
            waits.answered.cancel()
            await start(sink)

        async def probes(timeout_s: float) -> None:
            await ask("probe")
            await probe(timeout_s)

        async def stops(timeout_s: float, *, keep_app: bool = False) -> None:
            await ask("stop")
            await stop(timeout_s, keep_app=keep_app)

        new.start, new.probe, old.stop = starts, probes, stops  # type: ignore[method-assign]
        result = await switch(world, tmp_path=tmp_path)
        assert result.outcome is (Outcome.ROLLED_BACK if is_broken else Outcome.SWITCHED)
        assert asked == {phase: [200] * 4 for phase in ("stop", "start", "probe")}
