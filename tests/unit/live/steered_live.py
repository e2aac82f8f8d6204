"""A real scheduler with our part around it, in this process, for the tests of what it shows, counts and turns."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from engine_host.live.board import Board
from engine_host.live.sample import BlockState, DialName, LiveSample
from tests.unit.live.real_scheduler import Runner

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


def in_use(sample: LiveSample) -> float:
    return float((sample.states >= BlockState.ACTIVE).sum() / len(sample.states))
