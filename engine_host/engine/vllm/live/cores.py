"""The schedulers of an engine's cores, from the host's side: `engine_host.engine.port.LiveScheduler`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from engine_host.live.board import Board
from engine_host.live.sample import DialName, DialRange, LiveSample

_ANSWER_S = 25.0
"""What a core gets to apply the dials: its step has to end first, and the longest prefills take seconds."""
_POLL_S = (0.001, 0.002, 0.005, 0.01, 0.02)


def _with_dials(sample: LiveSample, board: Board) -> LiveSample:
    """Dials that an idle core has applied: it publishes no sample for that alone."""
    _, in_force = board.applied
    return replace(sample, dials=in_force) if in_force and in_force != sample.dials else sample


class LiveCores:
    def __init__(self, boards: Sequence[Board], llm: Any) -> None:
        self._boards, self._llm = boards, llm
        self._lock = asyncio.Lock()
        self._waking: set[asyncio.Task[None]] = set()
        self._ranges = boards[0].ranges
        facts = boards[0].facts
        self._missing = dict(facts.missing) if facts is not None else {}

    @property
    def fault(self) -> str | None:
        """Why there is nothing to see any more, in words."""
        faults = (f"engine core {board.engine_index}: {said}" for board in self._boards if (said := board.fault))
        return next(faults, None)

    @property
    def ranges(self) -> Mapping[DialName, DialRange]:
        return self._ranges

    @property
    def missing(self) -> Mapping[DialName, str]:
        return self._missing

    def samples(self) -> Sequence[LiveSample]:
        return [_with_dials(sample, board) for board in self._boards if (sample := board.sample()) is not None]

    def steps(self, after: float) -> npt.NDArray[Any]:
        found = [board.steps(after) for board in self._boards]
        together: npt.NDArray[Any] = np.concatenate(found)
        together.sort(order="at")
        return together

    async def set_dials(self, values: Mapping[DialName, int]) -> None:
        for name, value in values.items():
            span = self._ranges.get(name)
            if span is None:
                raise ValueError(f"this engine has no dial {name}: {self._missing.get(name, 'it was started without')}")
            if not span.low <= value <= span.high:
                raise ValueError(f"{name} {value} is not within {span.low} to {span.high}")
        async with self._lock:
            if (fault := self.fault) is not None:
                raise TimeoutError(fault)
            asked = [(board, board.want(values)) for board in self._boards]
            # An idle core applies them after the next thing that it is asked, so it is asked something.
            waking = asyncio.create_task(self._wake())
            self._waking.add(waking)
            waking.add_done_callback(self._waking.discard)
            await self._applied(asked)

    async def _wake(self) -> None:
        # With a deadline: a core that has died never answers, and who waits for it keeps its engine in memory.
        with contextlib.suppress(Exception):
            async with asyncio.timeout(_ANSWER_S):
                await self._llm.is_sleeping()

    async def _applied(self, asked: list[tuple[Board, int]]) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _ANSWER_S
        rounds = 0
        while left := [board for board, seq in asked if board.applied[0] < seq]:
            if (fault := self.fault) is not None:
                raise TimeoutError(fault)
            if loop.time() > deadline:
                raise TimeoutError(
                    f"engine core {left[0].engine_index} did not answer within {_ANSWER_S:.0f} s; it applies the dials "
                    "when its step ends"
                )
            await asyncio.sleep(_POLL_S[min(rounds, len(_POLL_S) - 1)])
            rounds += 1
