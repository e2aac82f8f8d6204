"""What our part shows of vLLM's real scheduler: blocks, requests, why they wait."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from engine_host.live.sample import BlockState, DialName, RequestState
from tests.unit.live.steered_live import Start, in_use

pytest.importorskip("vllm")


def test_an_idle_scheduler_has_said_what_it_is(start: Start) -> None:
    live = start()
    sample = live.sample()
    assert (len(sample.states), sample.usage, len(sample.requests)) == (199, 0.0, 0)
    assert not sample.states.any()
    assert {name: (span.low, span.high, span.start) for name, span in live.board.ranges.items()} == {
        DialName.MAX_ACTIVE_SEQS: (1, 16, 16),
        DialName.MAX_SCHEDULED_TOKENS: (16, 512, 512),
        DialName.SPECULATIVE_TOKENS: (0, 5, 5),
    }
    assert sample.dials == {name: span.start for name, span in live.board.ranges.items()}


def test_without_speculation_there_is_no_dial_for_it(start: Start) -> None:
    assert DialName.SPECULATIVE_TOKENS not in start(k=0).board.ranges


def test_block_states_agree_with_vllms_own_gauge_at_every_sample(start: Start) -> None:
    live = start(accept=lambda request_id, drafted: min(drafted, 2))
    for n in range(12):
        live.runner.add(f"r{n}", 10 + 7 * n, 20)
    usages = set()
    for _ in range(40):
        live.runner.step()
        sample = live.sample()
        assert in_use(sample) == pytest.approx(sample.usage, abs=1e-12)
        assert sample.usage == pytest.approx(live.scheduler.kv_cache_manager.usage, abs=1e-12)
        usages.add(sample.usage)
    assert len(usages) > 5
    assert not live.scheduler.requests
    states = live.sample().states
    assert (states == BlockState.CACHED).sum() > 0 and set(np.unique(states)) <= {BlockState.FREE, BlockState.CACHED}


def test_a_prefix_that_two_requests_share_is_shown_as_shared_and_as_found_in_the_cache(start: Start) -> None:
    live = start(k=0)
    live.runner.add("first", 64, 50)
    live.runner.step()
    live.runner.add("second", 64, 50)
    live.runner.step()
    sample = live.sample()
    assert (sample.states == BlockState.SHARED).sum() == 3  # the last of the four is computed again for its last token
    first, second = sample.requests
    assert (first["cached_tokens"], second["cached_tokens"]) == (0, 48)
    assert first["blocks"] + second["blocks"] == (sample.states >= BlockState.ACTIVE).sum() + 3


def test_a_request_is_shown_as_the_scheduler_has_it(start: Start) -> None:
    live = start(k=0)
    live.runner.add("one-é", 20, 50, priority=3, arrival_time=123.5)
    for _ in range(4):
        live.runner.step()
    [record] = live.sample().requests
    assert record["id"].decode() == "one-é"
    assert (record["state"], record["priority"], record["arrived"]) == (RequestState.RUNNING, 3, 123.5)
    assert (record["prompt_tokens"], record["generated_tokens"], record["computed_tokens"]) == (20, 4, 23)
    assert (record["blocks"], record["preemptions"]) == (2, 0)


def test_a_request_has_begun_with_the_first_step_that_takes_it_in_and_not_again_after_a_preemption(
    start: Start,
) -> None:
    live = start(k=0, max_num_seqs=1)
    live.runner.add("first", 600, 50)
    live.runner.add("second", 10, 50)
    before = time.time()
    live.runner.step()
    after = time.time()
    first, second = live.sample().requests
    assert before <= first["began"] <= after, "its prompt takes two steps"
    assert (first["generated_tokens"], second["began"]) == (0, 0.0)
    began = first["began"]
    live.scheduler.reset_prefix_cache(reset_running_requests=True)
    live.runner.step()
    [again] = [one for one in live.sample().requests if one["id"] == b"first"]
    assert (again["preemptions"], again["began"]) == (1, began)


def test_running_requests_come_first_and_waiting_ones_are_counted_by_reason(start: Start) -> None:
    live = start(max_num_seqs=2)
    live.runner.add("constrained", 10, 50, sampling={"structured_outputs": _grammar()})
    for n in range(5):
        live.runner.add(f"r{n}", 10, 50)
    live.runner.step()
    sample = live.sample()
    assert [record["id"] for record in sample.requests[:2]] == [b"r0", b"r1"]
    assert sample.requests["state"].tolist() == [
        RequestState.RUNNING,
        RequestState.RUNNING,
        RequestState.DEFERRED,
        *[RequestState.WAITING] * 3,
    ]
    assert sample.waiting_by_reason == {"grammar": 1, "capacity": 3}


def _grammar() -> Any:
    from vllm.sampling_params import StructuredOutputsParams

    return StructuredOutputsParams(regex="a+")


def test_one_passed_over_for_no_known_reason_is_not_said_to_wait_for_room(start: Start) -> None:
    live = start()
    request = live.runner.add("skipped", 10, 50)
    if hasattr(live.scheduler, "deferred_waiting"):
        live.scheduler.deferred_waiting.add(request)
    else:
        live.scheduler.waiting.remove_request(request)
        live.scheduler.skipped_waiting.add_request(request)
    live.scheduler._engine_host.steps.version += 2
    sample = live.sample()
    assert sample.waiting_by_reason == {"other": 1}
    assert sample.requests["state"].tolist() == [RequestState.DEFERRED]


def test_a_preempted_request_is_shown_and_its_preemption_counted(start: Start) -> None:
    live = start(blocks=12, k=0, max_num_seqs=4)
    for n in range(4):
        live.runner.add(f"r{n}", 30, 60)
    seen: set[bytes] = set()
    again: set[bytes] = set()
    most, began = 0, time.time()
    for _ in range(200):
        if not live.scheduler.requests:
            break
        live.runner.step()
        sample = live.sample()
        assert in_use(sample) == pytest.approx(sample.usage, abs=1e-12)
        if sample.waiting_by_reason.get("preempted"):
            waiting = sample.requests[sample.requests["state"] == RequestState.PREEMPTED]
            assert len(waiting) == sample.waiting_by_reason["preempted"]
            assert (waiting["blocks"] == 0).all() and (waiting["preemptions"] > 0).all()
            assert (waiting["preempted_at"] >= began).all() and (waiting["preempted_at"] <= time.time()).all()
            seen |= set(waiting["id"].tolist())
        running = sample.requests[sample.requests["state"] == RequestState.RUNNING]
        assert not running["preempted_at"].any()
        again |= set(running["id"][running["waited_again_s"] > 0].tolist())
        most = max(most, int(sample.requests["preemptions"].sum()))
    assert seen and seen == again and most > 0 and not live.scheduler.requests


def test_requests_that_wait_in_a_priority_queue_are_seen_too(start: Start) -> None:
    live = start(max_num_seqs=1, policy="priority")
    for n in range(4):
        live.runner.add(f"r{n}", 10, 50, priority=4 - n)
    live.runner.step()
    sample = live.sample()
    assert sample.requests["id"].tolist()[0] == b"r3"
    assert sample.waiting_by_reason == {"capacity": 3}


@pytest.mark.parametrize(("asked", "shown"), [(2**40, 2**40), (-(2**63), -(2**63)), (2**70, 2**63 - 1)])
def test_a_clients_priority_of_any_size_is_shown(start: Start, asked: int, shown: int) -> None:
    """A time in milliseconds, say, so that the oldest comes first."""
    live = start(policy="priority")
    live.runner.add("a", 10, 30, priority=asked)
    live.runner.step()
    assert live.sample().requests["priority"].tolist() == [shown]
