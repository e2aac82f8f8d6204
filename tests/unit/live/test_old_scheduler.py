"""The path of vLLM 0.26, whose one limit is the number of its slots, and whose deferred requests have a queue."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from engine_host.engine.vllm.live.steered import Steered
from engine_host.live.board import Board
from engine_host.live.sample import DialName, LiveSample, RequestState
from tests.unit.live.old_scheduler import OldScheduler, RequestStatus, old_config
from tests.unit.live.real_scheduler import environment


class SteeredOld(Steered, OldScheduler):
    pass


class Live:
    def __init__(self, config: Any, board: Board) -> None:
        self.board = board
        self.scheduler: Any = SteeredOld(config)

    def step(self) -> Any:
        output = self.scheduler.schedule()
        names = list(output.num_scheduled_tokens)
        result = SimpleNamespace(
            sampled_token_ids=[[7, 7, 7] if output.scheduled_spec_decode_tokens else [7] for _ in names],
            req_id_to_index={name: n for n, name in enumerate(names)},
        )
        self.scheduler.update_from_output(output, result)
        return output

    def dial(self, **values: int) -> int:
        return self.board.want({DialName(name): value for name, value in values.items()})

    def sample(self) -> LiveSample:
        version = self.scheduler._engine_host.steps.version
        deadline = time.monotonic() + 10
        while self.scheduler._engine_host._publisher.published != version:
            assert time.monotonic() < deadline, self.board.fault
            time.sleep(0.005)
        found = self.board.sample()
        assert found is not None
        return found


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Live]]:
    boards: list[Board] = []
    started: list[Live] = []

    def make(**config: Any) -> Live:
        boards.append(Board(0))
        for name, value in environment(boards[-1:]).items():
            monkeypatch.setenv(name, value)
        started.append(Live(old_config(**config), boards[-1]))
        assert started[-1].scheduler._engine_host is not None, boards[-1].fault
        return started[-1]

    yield make
    for live in started:
        live.scheduler.shutdown()
    for board in boards:
        board.close()


def test_its_dials_are_those_of_newer_releases(start: Callable[..., Live]) -> None:
    assert {name: (span.low, span.high, span.start) for name, span in start().board.ranges.items()} == {
        DialName.MAX_ACTIVE_SEQS: (1, 16, 16),
        DialName.MAX_SCHEDULED_TOKENS: (16, 256, 256),
        DialName.SPECULATIVE_TOKENS: (0, 4, 4),
    }


def test_the_slots_follow_those_that_run_down_to_the_limit_and_vllm_has_nothing_to_object(
    start: Callable[..., Live],
) -> None:
    live = start()
    for n in range(20):
        live.scheduler.add(f"r{n}")
    live.step()
    assert len(live.scheduler.running) == 16
    live.dial(max_active_seqs=2)
    slots = []
    for _ in range(18):
        live.step()
        slots.append((live.scheduler.max_num_running_reqs, len(live.scheduler.running)))
        live.scheduler.finish_requests(live.scheduler.running[0].request_id, RequestStatus.FINISHED_STOPPED)
    # It holds back until two are left, then lets in one for every one that ends.
    assert slots[:4] == [(16, 16), (15, 15), (14, 14), (13, 13)]
    assert slots[13:] == [(3, 3), (2, 2), (2, 2), (2, 2), (2, 2)]
    assert live.sample().dials[DialName.MAX_ACTIVE_SEQS] == 2
    live.dial(max_active_seqs=16)
    for n in range(20, 40):
        live.scheduler.add(f"r{n}")
    live.step()
    assert len(live.scheduler.running) == 16


def test_fewer_tokens_are_in_force_at_the_next_step_for_the_assertion_at_its_end(start: Callable[..., Live]) -> None:
    live = start()
    for n in range(3):
        live.scheduler.add(f"r{n}")
    live.step()
    asked = live.dial(max_scheduled_tokens=16)
    live.step()
    assert live.board.applied[0] == asked and live.scheduler.max_num_scheduled_tokens == 16


def test_k_is_drafted_and_counted(start: Callable[..., Live]) -> None:
    live = start()
    live.scheduler.add("a")
    live.scheduler.add("b")
    ks = []
    for k in (4, 0, 2, 4):
        live.dial(speculative_tokens=k)
        ks.append(live.step().num_spec_tokens_to_schedule)
    assert ks == [4, 0, 2, 4]
    sample = live.sample()
    assert (sample.drafted_total, sample.accepted_total) == (2 * (4 + 2 + 4), 2 * 3 * 2)
    assert sample.requests["drafted"].tolist() == [10, 10]


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"data_parallel_size": 2}, "the same K in every engine core"),
        ({"method": "extract_hidden_states"}, "the method extract_hidden_states drafts the same number"),
    ],
)
def test_where_the_workers_cannot_follow_k_stays_and_the_reason_is_told(
    start: Callable[..., Live], config: dict[str, Any], why: str
) -> None:
    facts = start(**config).board.facts
    assert facts is not None and DialName.SPECULATIVE_TOKENS not in facts.ranges
    assert why in facts.missing[DialName.SPECULATIVE_TOKENS]


def test_the_second_model_runner_cuts_the_drafts_of_every_method(start: Callable[..., Live]) -> None:
    assert DialName.SPECULATIVE_TOKENS in start(method="suffix", is_v2=True).board.ranges


def test_those_in_its_queue_of_the_skipped_are_told_by_their_reason(start: Callable[..., Live]) -> None:
    live = start(max_num_seqs=1)
    live.scheduler.add("runs")
    live.scheduler.add("waits")
    live.scheduler.add("grammar", RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR)
    live.scheduler.add("remote", RequestStatus.WAITING_FOR_REMOTE_KVS)
    live.scheduler.add("streams", RequestStatus.WAITING_FOR_STREAMING_REQ)
    live.scheduler.add("lora", lora=object())
    live.scheduler.skipped_waiting.append(live.scheduler.waiting.pop())
    live.step()
    sample = live.sample()
    assert sample.waiting_by_reason == {
        "capacity": 1,
        "grammar": 1,
        "remote KV": 1,
        "streaming input": 1,
        "LoRA slot": 1,
    }
    states = dict(zip(sample.requests["id"].tolist(), sample.requests["state"].tolist(), strict=True))
    assert states[b"waits"] == RequestState.WAITING and states[b"lora"] == RequestState.DEFERRED


def test_one_that_has_ended_and_whose_blocks_another_engine_still_reads_is_not_listed(
    start: Callable[..., Live],
) -> None:
    live = start()
    live.scheduler.add("a")
    live.scheduler.add("b")
    live.step()
    live.scheduler.requests["a"].status = RequestStatus.FINISHED_STOPPED
    live.scheduler._engine_host.steps.version += 2
    sample = live.sample()
    assert sample.requests["id"].tolist() == [b"b"] and not sample.waiting_by_reason
    assert sample.usage == pytest.approx(2 / 49)


def test_an_idle_core_keeps_its_slots_in_step_with_the_dial(start: Callable[..., Live]) -> None:
    live = start()
    live.dial(max_active_seqs=3)
    assert live.scheduler.has_requests() is False
    assert live.scheduler.max_num_running_reqs == 3


def test_when_our_part_fails_its_slots_are_vllms_again(
    start: Callable[..., Live], monkeypatch: pytest.MonkeyPatch
) -> None:
    live = start()
    for n in range(4):
        live.scheduler.add(f"r{n}")
    live.dial(max_active_seqs=2)
    live.step()
    assert live.scheduler.max_num_running_reqs == 2

    def broken(*arguments: Any) -> None:
        raise RuntimeError("a mistake of ours")

    monkeypatch.setattr(live.scheduler._engine_host, "before_update", broken)
    live.step()
    live.step()
    assert (live.scheduler.max_num_running_reqs, len(live.scheduler.running)) == (16, 4)
    assert "a mistake of ours" in live.board.fault
