"""Our part wrapped around vLLM's real scheduler, without an engine: what it counts, shows and turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine_host.live.board import Board
from engine_host.live.sample import BlockState, DialName, LiveSample, RequestState
from tests.unit.live import real_scheduler
from tests.unit.live.real_scheduler import Runner

pytest.importorskip("vllm")

Start = Callable[..., "Live"]


class Live:
    """A scheduler in this process, its board and what drives it."""

    def __init__(self, scheduler: Any, board: Board, **options: Any) -> None:
        self.scheduler, self.board = scheduler, board
        self.runner = Runner(scheduler, **options)

    def sample(self) -> LiveSample:
        """One taken after the last step."""
        version = self.scheduler._engine_host.steps.version
        publisher = self.scheduler._engine_host._publisher
        deadline = time.monotonic() + 10
        while publisher.published != version:
            assert time.monotonic() < deadline, self.board.fault
            time.sleep(0.005)
        found = self.board.sample()
        assert found is not None
        return found

    def dial(self, **values: int) -> int:
        return self.board.want({DialName(name): value for name, value in values.items()})

    @property
    def fault(self) -> str:
        return self.board.fault

    def steps(self) -> Any:
        """Those recorded, once the last one is."""
        self.sample()
        return self.board.steps(0.0)


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    boards: list[Board] = []
    schedulers: list[Any] = []

    def started(
        *,
        blocks: int = 200,
        max_num_seqs: int = 16,
        max_tokens: int = 512,
        k: int = 5,
        policy: str = "fcfs",
        is_async: bool = False,
        **options: Any,
    ) -> Live:
        from engine_host.engine.vllm.live.scheduler import SteeredAsyncScheduler, SteeredScheduler

        board = Board(0)
        boards.append(board)
        for name, value in real_scheduler.environment([board]).items():
            monkeypatch.setenv(name, value)
        config = real_scheduler.scheduler_config(
            tmp_path,
            blocks=blocks,
            max_num_seqs=max_num_seqs,
            max_tokens=max_tokens,
            k=k,
            policy=policy,
            is_async=is_async,
        )
        scheduler = real_scheduler.make(SteeredAsyncScheduler if is_async else SteeredScheduler, config)
        assert scheduler._engine_host is not None, board.fault
        schedulers.append(scheduler)
        return Live(scheduler, board, **options)

    yield started
    for scheduler in schedulers:
        scheduler.shutdown()
    for board in boards:
        board.close()


def in_use(sample: LiveSample) -> float:
    return float((sample.states >= BlockState.ACTIVE).sum() / len(sample.states))


# --- what it shows


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
    live.scheduler.deferred_waiting.add(request)
    live.scheduler._engine_host.steps.version += 2
    sample = live.sample()
    assert sample.waiting_by_reason == {"other": 1}
    assert sample.requests["state"].tolist() == [RequestState.DEFERRED]


def test_a_preempted_request_is_shown_and_its_preemption_counted(start: Start) -> None:
    live = start(blocks=12, k=0, max_num_seqs=4)
    for n in range(4):
        live.runner.add(f"r{n}", 30, 60)
    seen: set[bytes] = set()
    most = 0
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
            seen |= set(waiting["id"].tolist())
        most = max(most, int(sample.requests["preemptions"].sum()))
    assert seen and most > 0 and not live.scheduler.requests


def test_requests_that_wait_in_a_priority_queue_are_seen_too(start: Start) -> None:
    live = start(max_num_seqs=1, policy="priority")
    for n in range(4):
        live.runner.add(f"r{n}", 10, 50, priority=4 - n)
    live.runner.step()
    sample = live.sample()
    assert sample.requests["id"].tolist()[0] == b"r3"
    assert sample.waiting_by_reason == {"capacity": 3}


# --- what it counts


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
    off = live.runner.drafted - live.sample().drafted_total
    assert off == 5 and live.scheduler._engine_host._tally.disagrees
    for _ in range(5):
        live.runner.step()
    assert live.runner.drafted - live.sample().drafted_total == off
    assert live.sample().drafted_total > first.drafted_total
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


# --- what it turns


def test_k_changes_with_the_next_draft(start: Start) -> None:
    live = start()
    live.runner.add("a", 10, 500)
    ks = []
    for k in (5, 0, 2, 5):
        asked = live.dial(speculative_tokens=k)
        for _ in range(3):
            output = live.runner.step()
        assert live.board.applied[0] == asked
        ks.append((output.num_spec_tokens_to_schedule, len(output.scheduled_spec_decode_tokens.get("a", ()))))
    assert ks == [(5, 5), (0, 0), (2, 2), (5, 5)]
    assert live.scheduler.dynamic_sd_lookup is None, "at full K vLLM goes by its own rules again"


def test_fewer_are_admitted_and_those_that_run_go_on(start: Start) -> None:
    live = start(k=0)
    for n in range(40):
        live.runner.add(f"r{n}", 10, 12)
    running = []
    for limit in (16, 2, 16):
        live.dial(max_active_seqs=limit)
        for _ in range(3):
            live.runner.step()
        running.append(len(live.scheduler.running))
        assert live.sample().dials[DialName.MAX_ACTIVE_SEQS] == limit
        if limit == 2:
            while len(live.scheduler.running) > 2:
                live.runner.step()
            assert len(live.scheduler.running) in (0, 1, 2)
    assert running == [16, 16, 16]
    while live.scheduler.has_requests():
        live.runner.step()
    assert not live.scheduler.requests


def test_fewer_tokens_are_scheduled(start: Start) -> None:
    live = start(k=0)
    live.runner.add("long", 2_000, 5)
    assert live.runner.step().total_num_scheduled_tokens == 512
    live.dial(max_scheduled_tokens=100)
    assert live.runner.step().total_num_scheduled_tokens == 100
    live.dial(max_scheduled_tokens=512)
    assert live.runner.step().total_num_scheduled_tokens == 512


def test_an_idle_core_applies_them_when_it_is_asked_anything(start: Start) -> None:
    live = start()
    asked = live.dial(max_active_seqs=3, speculative_tokens=1)
    assert live.board.applied[0] == 0
    assert live.scheduler.has_requests() is False
    assert live.board.applied == (
        asked,
        {DialName.MAX_ACTIVE_SEQS: 3, DialName.MAX_SCHEDULED_TOKENS: 512, DialName.SPECULATIVE_TOKENS: 1},
    )


def test_a_value_outside_its_range_is_not_applied(start: Start) -> None:
    """The host refuses it before; the core would not want to find out."""
    live = start()
    live.dial(max_active_seqs=17, max_scheduled_tokens=1, speculative_tokens=6)
    live.scheduler.has_requests()
    assert live.board.applied[1] == {name: span.start for name, span in live.board.ranges.items()}


# --- what goes wrong


def test_our_mistake_in_a_step_costs_vllm_nothing_and_turns_the_dials_back(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = start()
    live.runner.add("a", 10, 30)
    live.dial(speculative_tokens=0, max_active_seqs=1)
    live.runner.step()

    def broken(*arguments: Any) -> None:
        raise RuntimeError("a mistake of ours")

    monkeypatch.setattr(live.scheduler._engine_host, "after_update", broken)
    live.runner.step()
    assert live.scheduler._engine_host is None
    assert live.fault == "the part inside the scheduler failed: RuntimeError: a mistake of ours"
    assert (live.scheduler.max_num_active_reqs, live.scheduler.dynamic_sd_lookup) == (16, None)
    while live.scheduler.has_requests():
        live.runner.step()
    assert not live.scheduler.requests


@pytest.mark.parametrize("hook", ["before_schedule", "after_schedule", "before_update", "rests", "ends"])
def test_whatever_hook_fails_the_requests_end_as_they_should(
    start: Start, monkeypatch: pytest.MonkeyPatch, hook: str
) -> None:
    live = start()
    live.runner.add("a", 10, 30)

    def broken(*arguments: Any) -> None:
        raise RuntimeError("a mistake of ours")

    monkeypatch.setattr(live.scheduler._engine_host, hook, broken)
    while live.scheduler.has_requests():
        live.runner.step()
    assert not live.scheduler.requests
    assert "a mistake of ours" in live.fault


def test_a_mistake_in_the_publisher_is_told_by_the_next_step(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    live = start()
    live.sample()

    def broken() -> None:
        raise KeyError("a mistake of ours")

    monkeypatch.setattr(live.scheduler._engine_host._publisher._capture, "take", broken)
    live.runner.add("a", 10, 500)
    deadline = time.monotonic() + 10
    while not live.fault:
        live.runner.step()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert "KeyError: 'a mistake of ours'" in live.fault


def test_a_scheduler_that_is_built_otherwise_runs_without_and_says_so(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm.v1.core.block_pool import BlockPool

    live = start()
    # The probe fails on a scheduler whose pool has no list of blocks any more.
    original = BlockPool.__init__

    def without_blocks(self: Any, *args: Any, **options: Any) -> None:
        original(self, *args, **options)
        del self.blocks

    monkeypatch.setattr(BlockPool, "__init__", without_blocks)
    with pytest.raises(AssertionError, match=r"built otherwise than is known: .* has no attribute 'blocks'"):
        start()
    assert live.fault == ""


def test_without_a_host_that_asks_it_is_vllms_own_scheduler(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    from engine_host.engine.vllm.live.scheduler import SteeredScheduler

    live = start()
    monkeypatch.delenv(real_scheduler.environment([]).popitem()[0])
    plain = real_scheduler.make(SteeredScheduler, live.scheduler.vllm_config)
    assert plain._engine_host is None
    runner = Runner(plain)
    runner.add("a", 10, 30)
    while plain.has_requests():
        runner.step()


def test_naming_our_class_changes_nothing_that_a_compile_cache_is_named_by(start: Start) -> None:
    config = start().scheduler.vllm_config
    before = config.compute_hash()
    config.scheduler_config.scheduler_cls = "engine_host.engine.vllm.live.scheduler.SteeredScheduler"
    assert config.compute_hash() == before
