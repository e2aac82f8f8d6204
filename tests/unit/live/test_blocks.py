"""Block states that are followed are those that a walk through all blocks finds, whatever the requests do."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from engine_host.engine.vllm.live import blocks as blocks_module
from engine_host.engine.vllm.live.blocks import BlockStates
from engine_host.live.sample import BlockState
from tests.unit.live import real_scheduler
from tests.unit.live.real_scheduler import Runner

pytest.importorskip("vllm")


class Followed:
    """A real scheduler whose freed requests are told, as `Steered` tells them."""

    def __init__(self, home: Path, blocks: int = 300) -> None:
        from vllm.v1.core.sched.scheduler import Scheduler

        class Telling(Scheduler):  # type: ignore[misc]
            states: Any = None

            def _free_request(self, request: Any, *args: Any, **options: Any) -> Any:
                self.states.freeing(request.request_id)
                return super()._free_request(request, *args, **options)

        config = real_scheduler.scheduler_config(home, blocks=blocks, max_num_seqs=16, max_tokens=256, k=3)
        self.scheduler = real_scheduler.make(Telling, config)
        self.states = self.scheduler.states = BlockStates(self.scheduler.kv_cache_manager)
        self.runner = Runner(self.scheduler, accept=lambda request_id, drafted: drafted // 2)

    def look(self) -> npt.NDArray[np.uint8]:
        found = self.states.look(lambda: True)
        assert found is not None
        return found

    def walked(self) -> list[int]:
        """What there is to see, block by block."""
        found = []
        for block in self.scheduler.kv_cache_manager.block_pool.blocks:
            if not block.is_null:
                idle = BlockState.CACHED if block.block_hash is not None else BlockState.FREE
                held = BlockState.SHARED if block.ref_cnt > 1 else BlockState.ACTIVE
                found.append(int(held if block.ref_cnt else idle))
        return found


@pytest.mark.parametrize("seed", range(6))
def test_following_sees_what_a_walk_sees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Requests come in bursts with common beginnings, end, are preempted and aborted; looks come now and then."""
    from vllm.v1.request import RequestStatus

    monkeypatch.setattr(blocks_module, "_IN_TURN", 1)  # what is read in turn would hide what was missed
    chance = random.Random(seed)
    subject = Followed(tmp_path, blocks=chance.choice([40, 120, 300]))
    assert subject.look().tolist() == subject.walked()
    seen = set()
    for n in range(150):
        if chance.random() < 0.3:
            prompt = [chance.randrange(3)] * 32 + [chance.randrange(500) for _ in range(chance.randrange(1, 60))]
            subject.runner.add(f"r{n}", prompt, chance.randrange(1, 40))
        if chance.random() < 0.05 and subject.scheduler.requests:
            victim = chance.choice(list(subject.scheduler.requests))
            subject.scheduler.finish_requests(victim, RequestStatus.FINISHED_ABORTED)
        if subject.scheduler.has_requests():
            subject.runner.step()
        if chance.random() < 0.4:
            found = subject.look().tolist()
            assert found == subject.walked()
            seen |= set(found)
    assert subject.states.walks == 1
    assert seen == set(BlockState)


def test_what_was_missed_is_noticed_by_vllms_own_count_and_all_are_walked_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks_module, "_IN_TURN", 1)
    subject = Followed(tmp_path)
    subject.runner.add("a", 40, 500)
    subject.runner.step()
    subject.look()
    pool = subject.scheduler.kv_cache_manager.block_pool
    held = pool.get_new_blocks(7)  # as a release would that keeps blocks in another place
    assert subject.look().tolist() == subject.walked()
    assert subject.states.walks == 2
    pool.free_blocks(held)
    assert subject.look().tolist() == subject.walked()


def test_a_reset_of_the_prefix_cache_is_seen(tmp_path: Path) -> None:
    subject = Followed(tmp_path)
    subject.runner.add("a", 100, 2)
    while subject.scheduler.has_requests():
        subject.runner.step()
    assert BlockState.CACHED in subject.look()
    assert subject.scheduler.reset_prefix_cache()
    subject.states.forget()
    assert not subject.look().any()


def test_every_block_is_read_again_in_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks_module, "_IN_TURN", 50)
    subject = Followed(tmp_path)
    subject.look()
    pool = subject.scheduler.kv_cache_manager.block_pool
    pool.blocks[277]._block_hash = b"by nobody's doing"
    looks = 0
    while subject.look().tolist() != subject.walked():
        looks += 1
        assert looks < 10
    assert subject.states.walks == 1


def test_a_look_that_was_overtaken_is_none_and_the_next_one_is_right(tmp_path: Path) -> None:
    subject = Followed(tmp_path)
    assert subject.states.look(lambda: False) is None
    subject.runner.add("a", 40, 500)
    subject.runner.step()
    subject.look()
    subject.runner.add("b", 60, 3)
    for left in range(3):
        answers = iter([True] * left + [False] * 10)
        assert subject.states.look(lambda answers=answers: next(answers)) is None  # type: ignore[misc]
        subject.runner.step()
    assert subject.look().tolist() == subject.walked()


def test_in_groups_that_let_go_of_blocks_they_are_not_counted(tmp_path: Path) -> None:
    subject = Followed(tmp_path)
    subject.runner.add("a", 100, 500)
    subject.runner.step()
    [group] = subject.scheduler.kv_cache_manager.coordinator.single_type_managers
    group.req_to_blocks["a"][:3] = [group._null_block] * 3

    class SlidingWindowManager:
        req_to_blocks = group.req_to_blocks

    subject.scheduler.kv_cache_manager.coordinator.single_type_managers = [SlidingWindowManager()]
    states = BlockStates(subject.scheduler.kv_cache_manager)
    assert states.held(["a", "b"]) == [[4, 0]]
    states.look(lambda: True)
    states.look(lambda: True)
    assert states.walks == 2
