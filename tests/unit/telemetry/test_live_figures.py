"""What a snapshot takes from the scheduler's samples."""

from __future__ import annotations

import dataclasses
import time

import pytest

from engine_host.engine.port import EngineFacts
from engine_host.live.sample import RequestState
from engine_host.telemetry.live_figures import live_figures
from tests.unit.scripted_engine import FACTS
from tests.unit.scripted_scheduler import block_states, live_sample, request_records

# The capacity with vLLM's null block, as it counts.
facts = dataclasses.replace(FACTS, total_blocks=100, block_size=32, capacity_tokens=101 * 32)


def test_blocks_by_state_shared_ones_are_active_too() -> None:
    states = block_states(shared=5, active=20, cached=30, free=45)
    blocks = live_figures([live_sample(states=states)], facts, 0.0, is_empty=False).blocks
    assert (blocks.total, blocks.active, blocks.shared, blocks.cached, blocks.free) == (100, 25, 5, 30, 45)


def test_engine_cores_are_summed_and_their_usage_told_by_core() -> None:
    samples = [
        live_sample(
            request_records({"id": "a"}, {"id": "b", "state": 0}), block_states(active=50, free=50),
            waiting_by_reason={"capacity": 1},
        ),
        live_sample(
            request_records({"id": "c"}), block_states(active=10, free=90), engine_index=1,
            waiting_by_reason={"capacity": 2, "grammar": 1},
        ),
    ]  # fmt: skip
    found = live_figures(samples, facts, time.time(), is_empty=False)
    assert found.usage_by_engine == [0.5, 0.1]
    assert (found.blocks.total, found.blocks.active) == (200, 60)
    assert (found.running, found.waiting_by_reason, found.waiting) == (2, {"capacity": 3, "grammar": 1}, 4)


def test_internal_waste_is_the_room_without_a_token() -> None:
    records = request_records(
        {"id": "a", "blocks": 2, "computed_tokens": 33}, {"id": "b", "blocks": 1, "computed_tokens": 15}
    )
    found = live_figures([live_sample(records)], facts, 0.0, is_empty=False)
    assert found.internal_waste == pytest.approx(1 - 48 / 96)


def test_blocks_that_two_requests_share_are_full_for_both() -> None:
    """64 tokens in two shared blocks: held by each of them, wasted by none."""
    records = request_records(*({"id": one, "blocks": 2, "computed_tokens": 64} for one in "ab"))
    states = block_states(shared=2, free=98)
    assert live_figures([live_sample(records, states)], facts, 0.0, is_empty=False).internal_waste == 0.0


def test_with_groups_of_layers_a_block_holds_a_share_of_a_tokens_layers() -> None:
    two_groups = dataclasses.replace(facts, capacity_tokens=101 * 32 // 2)
    records = request_records({"id": "a", "blocks": 4, "computed_tokens": 64})
    assert live_figures([live_sample(records)], two_groups, 0.0, is_empty=False).internal_waste == 0.0


@pytest.mark.parametrize("record", [{"id": "a"}, {"id": "a", "blocks": 1, "computed_tokens": 4_000}])
def test_waste_that_cannot_be_told_is_unknown(record: dict[str, int]) -> None:
    assert live_figures([live_sample(request_records(record))], facts, 0.0, is_empty=False).internal_waste is None


def test_the_oldest_wait_is_of_those_that_have_not_run() -> None:
    now = time.time()
    records = request_records(
        {"id": "running", "arrived": now - 90},
        {"id": "preempted", "arrived": now - 60, "state": RequestState.PREEMPTED},
        {"id": "waiting", "arrived": now - 5, "state": RequestState.WAITING},
        {"id": "deferred", "arrived": now - 9, "state": RequestState.DEFERRED},
    )
    found = live_figures([live_sample(records)], facts, now, is_empty=False)
    assert found.oldest_wait_s == pytest.approx(9.0)
    assert live_figures([live_sample()], facts, now, is_empty=False).oldest_wait_s is None


def test_what_ended_while_the_scheduler_was_silent_holds_nothing_any_more() -> None:
    """Field case 5: after a mass abort the last word stays high for ever."""
    sample = live_sample(
        request_records({"id": "a"}), block_states(active=90, free=10), waiting_by_reason={"capacity": 7}
    )
    found = live_figures([sample], facts, 0.0, is_empty=True)
    assert (found.blocks.active, found.blocks.cached, found.blocks.free) == (0, None, None)
    assert (found.usage_by_engine, found.running, found.waiting) == ([0.0], 0, 0)


def test_an_idle_scheduler_that_said_so_is_believed() -> None:
    sample = live_sample(states=block_states(cached=40, free=60))
    blocks = live_figures([sample], facts, 0.0, is_empty=True).blocks
    assert (blocks.active, blocks.cached, blocks.free) == (0, 40, 60)


def test_facts_without_figures_are_no_fault() -> None:
    bare = EngineFacts("0.32.0", "m", None, None, None, None, None, None, None)
    records = request_records({"id": "a", "blocks": 2, "computed_tokens": 33})
    assert live_figures([live_sample(records)], bare, 0.0, is_empty=False).internal_waste is None
