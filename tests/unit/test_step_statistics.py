"""vLLM's statistics of a step as ours; what cannot be read never reaches vLLM's output loop."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from engine_host.engine.port import StepStats
from engine_host.engine.vllm.statistics import step_logger

pytest.importorskip("vllm")


def scheduler(**changes: Any) -> SimpleNamespace:
    values = {"num_running_reqs": 3, "num_waiting_reqs": 2, "kv_cache_usage": 0.5, "prefix_cache_stats": None,
              "spec_decoding_stats": None}  # fmt: skip
    return SimpleNamespace(**{**values, **changes})


def drafts(**changes: Any) -> SimpleNamespace:
    values = {"num_drafts": 4, "num_draft_tokens": 8, "num_accepted_tokens": 5,
              "num_accepted_tokens_per_pos": [3, 2, 0, 0, 0]}  # fmt: skip
    return SimpleNamespace(**{**values, **changes})


def recorded(scheduler_stats: Any, iteration_stats: Any = None, engine_index: int = 0) -> StepStats:
    found: list[StepStats] = []
    step_logger(found.append)(None).record(scheduler_stats, iteration_stats, engine_idx=engine_index)
    [step] = found
    return step


def test_gauges_and_counts_are_taken_over() -> None:
    iteration = SimpleNamespace(
        finished_requests=[SimpleNamespace(e2e_latency=2.0, queued_time=0.5)], num_prompt_tokens=10,
        num_generation_tokens=7, num_preempted_reqs=1, time_to_first_tokens_iter=[0.2],
        inter_token_latencies_iter=[0.01, 0.02],
    )  # fmt: skip
    prefix = SimpleNamespace(queries=100, hits=60)
    step = recorded(scheduler(prefix_cache_stats=prefix, num_skipped_waiting_reqs=1), iteration, engine_index=2)
    assert (step.engine_index, step.running, step.waiting, step.waiting_deferred, step.kv_usage) == (2, 3, 2, 1, 0.5)
    assert (step.prompt_tokens, step.generation_tokens, step.preemptions, step.finished) == (10, 7, 1, 1)
    assert (step.prefix_queried_tokens, step.prefix_hit_tokens) == (100, 60)
    assert (step.ttft_s, step.itl_s, step.e2e_s, step.queue_s) == ([0.2], [0.01, 0.02], [2.0], [0.5])


@pytest.mark.parametrize("part", ["scheduler", "iteration"])
def test_either_part_may_be_missing(part: str) -> None:
    iteration = SimpleNamespace(
        finished_requests=[], num_prompt_tokens=1, num_generation_tokens=2, num_preempted_reqs=0,
        time_to_first_tokens_iter=[], inter_token_latencies_iter=[],
    )  # fmt: skip
    step = recorded(scheduler(), None) if part == "scheduler" else recorded(None, iteration)
    assert (step.running, step.generation_tokens) == ((3, 0) if part == "scheduler" else (None, 2))


def test_drafts_by_position_are_vllms_own_count() -> None:
    counted = drafts(num_draft_tokens_per_pos=[4, 3, 1, 0, 0])
    step = recorded(scheduler(spec_decoding_stats=counted)).speculation
    assert step is not None
    assert (step.drafts, step.drafted, step.accepted) == (4, 8, 5)
    assert (step.drafted_per_position, step.accepted_per_position) == ([4, 3, 1, 0, 0], [3, 2, 0, 0, 0])


@pytest.mark.parametrize(
    ("drafted", "accepted", "reached"),
    [
        (20, [3, 2, 1, 1, 0], [4, 4, 4, 4, 4]),
        (8, [3, 2, 0, 0, 0], [4, 4, 0, 0, 0]),  # K dialled to 2 of 5
        (10, [3, 2, 1, 0, 0], [4, 4, 2, 0, 0]),
        (8, [3, 2, 1, 1, 1], [4, 4, 1, 1, 1]),  # one was longer than the others
        (0, [0, 0, 0, 0, 0], [0, 0, 0, 0, 0]),
    ],
)
def test_a_release_that_does_not_count_them_has_drafts_as_long_as_they_are(
    drafted: int, accepted: list[int], reached: list[int]
) -> None:
    """Not all as long as the largest K: the rates after the K in force would be 0, and no larger K advised again."""
    found = drafts(num_draft_tokens=drafted, num_accepted_tokens_per_pos=accepted, num_drafts=4 if drafted else 0)
    step = recorded(scheduler(spec_decoding_stats=found)).speculation
    assert step is not None
    assert step.drafted_per_position == reached


def test_what_cannot_be_read_or_kept_is_told_once_and_never_raised(caplog: pytest.LogCaptureFixture) -> None:
    def full(step: StepStats) -> None:
        raise IndexError("no row")

    logger = step_logger(full)(None)
    with caplog.at_level(logging.ERROR):
        logger.record(scheduler(), None)
        logger.record(SimpleNamespace(), None)
    assert [record.getMessage() for record in caplog.records] == [
        "a step's statistics are lost, figures may stay unknown"
    ]
