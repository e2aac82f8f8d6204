"""What goes wrong in our part, and what vLLM notices of it: nothing."""

from __future__ import annotations

import errno
import mmap
import os
import time
from types import SimpleNamespace
from typing import Any

import pytest

from engine_host.live import core_board, layout
from tests.unit.live import real_scheduler
from tests.unit.live.real_scheduler import Runner
from tests.unit.live.steered_live import Start

pytest.importorskip("vllm")


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
    admitted = getattr(live.scheduler, "max_num_active_reqs", live.scheduler.max_num_running_reqs)
    assert (admitted, live.scheduler.dynamic_sd_lookup) == (16, None)
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


def test_a_mistake_in_the_publisher_is_told_at_once_and_the_dials_go_back_with_the_next_step(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = start()
    live.dial(speculative_tokens=0)
    live.scheduler.has_requests()
    live.sample()

    def broken() -> None:
        raise KeyError("a mistake of ours")

    monkeypatch.setattr(live.scheduler._engine_host._publisher._capture, "take", broken)
    live.runner.add("a", 10, 500)
    live.runner.step()
    deadline = time.monotonic() + 10
    while not live.fault:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert "KeyError: 'a mistake of ours'" in live.fault
    assert live.scheduler.dynamic_sd_lookup is not None
    live.runner.step()
    assert live.scheduler.dynamic_sd_lookup is None and live.scheduler._engine_host is None


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


@pytest.mark.parametrize(("can_tell", "told"), [(True, "Cannot allocate memory"), (False, "None is not None")])
def test_where_no_room_can_be_made_the_engine_starts_without(
    start: Start, monkeypatch: pytest.MonkeyPatch, can_tell: bool, told: str
) -> None:
    def full(fd: int, size: int) -> mmap.mmap:
        if size > layout.FIXED_SIZE:
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        return mmap.mmap(fd, size)

    def silent(*arguments: Any) -> None:
        raise ValueError("no memory to tell it in")

    monkeypatch.setattr(core_board, "mmap", SimpleNamespace(mmap=full))
    if not can_tell:
        monkeypatch.setattr(core_board.CoreBoard, "tell_fault", silent)
    with pytest.raises(AssertionError, match=told):  # of `start`, once the scheduler is built
        start()


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
