"""What our part counts: drafts exactly as vLLM does, and steps as they ran."""

from __future__ import annotations

import time

import numpy as np
import pytest

from engine_host.live.sample import LiveSample
from tests.unit.live.steered_live import Live, Start, in_use

pytest.importorskip("vllm")


def by_request(sample: LiveSample) -> dict[str, tuple[int, int]]:
    return {r["id"].decode(): (int(r["drafted"]), int(r["accepted"])) for r in sample.requests}


def test_drafts_of_the_requests_sum_up_to_vllms_totals(start: Start) -> None:
    """Requests come, end, are stopped in the middle of a draft and are aborted while their step runs."""
    live = start(accept=lambda request_id, drafted: min(drafted, hash(request_id) % 6))
    ended: dict[str, tuple[int, int]] = {}
    for n in range(24):
        live.runner.add(f"r{n}", 10 + n, 20 + n)
    for n in range(60):
        victim = f"r{n // 4}" if n % 4 == 0 else None
        live.runner.step(before_update=(lambda name=victim: abort(live, name)) if victim else lambda: None)
        sample = live.sample()
        now = by_request(sample)
        assert (sample.drafted_total, sample.accepted_total) == (live.runner.drafted, live.runner.accepted)
        ended |= now
    assert live.runner.drafted > 500 and live.runner.accepted > 100
    assert not live.scheduler._engine_host._tally.disagrees
    assert not live.scheduler.requests and not live.scheduler._engine_host._tally.by_request


def abort(live: Live, request_id: str) -> None:
    from vllm.v1.request import RequestStatus

    live.scheduler.finish_requests(request_id, RequestStatus.FINISHED_ABORTED)


def test_while_all_still_run_their_sums_are_the_totals(start: Start) -> None:
    live = start(accept=lambda request_id, drafted: min(drafted, int(request_id[1:]) % 6))
    for n in range(12):
        live.runner.add(f"r{n}", 10, 500)
    for _ in range(20):
        live.runner.step()
    sums = by_request(live.sample())
    assert sum(drafted for drafted, _ in sums.values()) == live.runner.drafted
    assert sum(accepted for _, accepted in sums.values()) == live.runner.accepted
    assert sums["r3"][1] == 3 * sums["r1"][1] and sums["r0"][1] == 0


def test_a_release_that_counts_otherwise_is_noticed_and_from_then_on_watched(start: Start) -> None:
    live = start()
    for n in range(4):
        live.runner.add(f"r{n}", 10, 500)
    for _ in range(3):
        live.runner.step()
    first = live.sample()
    # As if vLLM left out a request for a reason that we do not know.
    live.scheduler._engine_host._tally.by_request["stranger"] = live.scheduler._engine_host._tally.by_request.pop("r0")
    live.runner.step()
    second = live.sample()
    assert second.drafted_total == live.runner.drafted == first.drafted_total + 20
    assert live.scheduler._engine_host._tally.disagrees
    for _ in range(5):
        live.runner.step()
    third = live.sample()
    assert third.drafted_total == live.runner.drafted == second.drafted_total + 100
    grown = {name: drafted - by_request(second)[name][0] for name, (drafted, _) in by_request(third).items()}
    assert grown == {"r0": 0, "r1": 25, "r2": 25, "r3": 25}
    assert "make_spec_decoding_stats" not in vars(live.scheduler)


def test_drafts_of_requests_that_run_through_a_reset_of_the_cache_are_counted_as_vllm_does(start: Start) -> None:
    live = start(is_async=True)
    for n in range(3):
        live.runner.add(f"r{n}", 10, 500)
    under_way = live.scheduler.schedule()
    for n in range(12):
        following = live.scheduler.schedule()
        if n == 5:
            live.scheduler.reset_prefix_cache(reset_running_requests=True)
        live.runner.update(under_way)
        under_way = following
    sample = live.sample()
    assert (sample.drafted_total, sample.accepted_total) == (live.runner.drafted, live.runner.accepted)
    assert live.runner.drafted > 0 and not live.scheduler._engine_host._tally.disagrees


def test_steps_are_recorded_as_they_ran(start: Start) -> None:
    live = start(accept=lambda request_id, drafted: min(drafted, 2))
    live.runner.add("a", 100, 500)
    live.runner.step()  # nothing before it
    live.runner.step()  # its first draft; the step before read the prompt
    live.runner.add("b", 100, 500)
    for _ in range(3):
        live.runner.step()
    steps = live.steps()
    assert steps["requests"].tolist() == [1, 2, 2, 2]
    assert steps["tokens"].tolist() == [6, 106 - 96, 12, 12]  # of b's prompt 96 tokens are in the cache
    assert steps["drafted"].tolist() == [5, 5, 10, 10]
    assert steps["accepted"].tolist() == [2, 2, 4, 4]
    assert steps["k"].tolist() == [5] * 4
    assert steps["is_decode"].tolist() == [0, 0, 0, 1]
    assert (steps["took_s"] > 0).all() and (np.diff(steps["at"]) > 0).all()


def test_a_step_after_a_rest_has_no_duration(start: Start) -> None:
    live = start()
    live.runner.add("a", 10, 3)
    while live.scheduler.has_requests():
        live.runner.step()
    before = len(live.steps())
    live.runner.add("b", 10, 500)
    live.runner.step()
    assert len(live.steps()) == before
    live.runner.step()
    assert len(live.steps()) == before + 1


def test_drafts_are_counted_while_the_scheduler_is_too_busy_to_be_looked_at(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = start(accept=lambda request_id, drafted: min(drafted, 2))
    ours = live.scheduler._engine_host
    live.runner.add("a", 10, 500)
    with monkeypatch.context() as patched:
        patched.setattr(ours._blocks, "look", lambda is_current: None)
        for _ in range(5):
            live.runner.step()
        deadline = time.monotonic() + 10
        while ours._tally.drafted < live.runner.drafted:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert ours._tally.pending == 0
    assert live.sample().drafted_total == live.runner.drafted


def test_draft_tokens_that_a_grammar_has_struck_out_were_not_drafted(start: Start) -> None:
    live = start(accept=lambda request_id, drafted: min(drafted, 1))
    for n in range(3):
        live.runner.add(f"r{n}", 10, 500)
    for _ in range(3):
        live.runner.step()
    output = live.scheduler.schedule()
    output.num_invalid_spec_tokens = {"r1": 2}
    live.runner.update(output)
    live.runner.step()
    sample = live.sample()
    sums = by_request(sample)
    assert sums["r0"][0] - sums["r1"][0] == 2
    assert sum(drafted for drafted, _ in sums.values()) == sample.drafted_total == live.runner.drafted
    assert not live.scheduler._engine_host._tally.disagrees
    assert live.steps()["is_decode"].tolist()[-2:] == [1, 1]


def test_with_a_step_always_under_way_blocks_and_drafts_agree_with_vllm(start: Start) -> None:
    """As on a GPU: a step is scheduled before the one before it has ended; K moves, requests are preempted and end."""
    live = start(is_async=True, blocks=40, accept=lambda request_id, drafted: min(drafted, int(request_id[1:]) % 6))
    for n in range(24):
        live.runner.add(f"r{n}", 10 + n, 30 + n)
    under_way = live.scheduler.schedule()
    ks, preempted = set(), 0
    for n in range(400):
        if n % 15 == 0:
            live.dial(speculative_tokens=(5, 0, 2)[n // 15 % 3])
        following = live.scheduler.schedule()
        if under_way.num_scheduled_tokens:
            live.runner.update(under_way)
            ks.add(under_way.num_spec_tokens_to_schedule)
        under_way = following
        sample = live.sample()
        assert in_use(sample) == pytest.approx(sample.usage, abs=1e-12)
        assert (sample.drafted_total, sample.accepted_total) == (live.runner.drafted, live.runner.accepted)
        preempted += sample.waiting_by_reason.get("preempted", 0)
        if not live.scheduler.requests:
            break
    assert not live.scheduler.requests
    assert ks == {0, 2, 5} and preempted and live.runner.accepted > 100
    assert not live.scheduler._engine_host._tally.disagrees and not live.fault
