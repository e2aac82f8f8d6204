"""The inside of an engine as the control socket asks for it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from engine_host.inside import Inside
from engine_host.live.dial import DialName
from engine_host.protocol.errors import EXIT_INVALID, EXIT_REFUSED, OperatorError
from engine_host.protocol.methods import DialsSet, KvMapParams, RequestAbort, RequestsList
from engine_host.protocol.snapshot import State
from engine_host.telemetry.store import TelemetryStore

from .scripted_engine import ScriptedEngine, ScriptedStream
from .scripted_scheduler import ScriptedScheduler, block_states, front_request, live_sample, request_records
from .switched_world import fast as fast
from .switched_world import serving, switch
from .world import World


def inside(world: World) -> Inside:
    return Inside(world.lifecycle, TelemetryStore())


def abort(id: str) -> RequestAbort:
    return RequestAbort(id=id, idempotency_key="k")


async def test_without_a_scheduler_the_front_end_lists_and_the_reason_is_told() -> None:
    engine = ScriptedEngine(scheduler="vLLM 0.40 is too new", front=[front_request("a", silent_s=0.1)])
    async with serving(engine) as world:
        found = inside(world).requests(RequestsList())
        assert ([row.id for row in found.requests], found.unavailable_reason) == (["a"], "vLLM 0.40 is too new")
        assert inside(world).kv_map(KvMapParams()).unavailable_reason == "vLLM 0.40 is too new"


async def test_until_the_scheduler_has_told_something_that_is_the_reason() -> None:
    async with serving(ScriptedEngine(scheduler=ScriptedScheduler())) as world:
        assert inside(world).requests(RequestsList()).unavailable_reason == "the scheduler has not told anything yet"


async def test_with_one_they_are_merged_and_mapped() -> None:
    sample = live_sample(request_records({"id": "a", "blocks": 3}), block_states(active=3, free=1))
    scheduler = ScriptedScheduler(newest=[sample])
    async with serving(ScriptedEngine(scheduler=scheduler, front=[front_request("a", silent_s=0.1)])) as world:
        found = inside(world).requests(RequestsList())
        assert (found.requests[0].blocks, found.unavailable_reason) == (3, None)
        mapped = inside(world).kv_map(KvMapParams(cells=2))
        assert (mapped.cells, mapped.holders[0].id) == ([(0, 0, 2, 0), (1, 0, 1, 0)], "a")


async def test_dials_are_the_lifecycles() -> None:
    async with serving(ScriptedEngine(scheduler=ScriptedScheduler())) as world:
        order = DialsSet(values={"speculative_tokens": 2}, idempotency_key="k")
        assert await inside(world).set_dials(order, "maria") == "speculative_tokens 5 → 2"
        assert inside(world).dials().dials[DialName.SPECULATIVE_TOKENS].value == 2


async def test_who_sets_a_dial_during_a_switch_is_told_that_it_will_not_last(tmp_path: Path) -> None:
    stuck = ScriptedStream("grammar", carryable=False)
    old = ScriptedEngine(scheduler=ScriptedScheduler(), streams=[stuck])
    async with serving(old) as world:
        under_way = asyncio.create_task(switch(world, tmp_path=tmp_path, drain_s=60.0))
        await world.until_state(State.SWITCHING)
        order = DialsSet(values={"speculative_tokens": 2}, idempotency_key="k")
        told = await inside(world).set_dials(order, "maria")
        assert told == "speculative_tokens 5 → 2; a switch is under way: the next profile begins at its own"
        await world.lifecycle.cancel_switch("maria")
        await under_way


async def test_a_request_is_ended_by_its_id_or_the_beginning_of_it() -> None:
    front = [front_request(one) for one in ("chatcmpl-1", "chatcmpl-12", "cmpl-7")]
    engine = ScriptedEngine(front=front)
    async with serving(engine) as world:
        assert inside(world).abort(abort("chatcmpl-1"), "ops").startswith("ended the request chatcmpl-1;")
        assert inside(world).abort(abort("cmpl-"), "ops").startswith("ended the request cmpl-7;")
        assert engine.aborted == [(one, "An operator ended this request.") for one in ("chatcmpl-1", "cmpl-7")]


@pytest.mark.parametrize(
    ("wanted", "fact"), [("x", "no unfinished request x"), ("r", "2 requests begin with r: r1, r2")]
)
async def test_an_id_that_names_no_one_request_ends_none(wanted: str, fact: str) -> None:
    engine = ScriptedEngine(front=[front_request("r1"), front_request("r2")])
    async with serving(engine) as world:
        with pytest.raises(OperatorError) as caught:
            inside(world).abort(abort(wanted), "ops")
        assert (caught.value.fact, caught.value.exit_code) == (fact, EXIT_INVALID)
        assert engine.aborted == []


def test_while_no_engine_runs_there_is_nothing_to_see_and_nothing_to_end() -> None:
    dead = inside(World())
    assert dead.requests(RequestsList()).unavailable_reason == "no engine is running"
    assert dead.kv_map(KvMapParams()).unavailable_reason == "no engine is running"
    with pytest.raises(OperatorError) as caught:
        dead.abort(abort("a"), "ops")
    assert caught.value.exit_code == EXIT_REFUSED
