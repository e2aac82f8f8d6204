"""Starts steered schedulers and ends them again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine_host.live.board import Board
from tests.unit.live import real_scheduler
from tests.unit.live.steered_live import Live, Start


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """What they show is published a hundred times a second: a test looks after every step."""
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
        from engine_host.engine.vllm.live import publisher
        from engine_host.engine.vllm.live.scheduler import SteeredAsyncScheduler, SteeredScheduler

        monkeypatch.setattr(publisher, "_PERIOD_S", 0.01)
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
