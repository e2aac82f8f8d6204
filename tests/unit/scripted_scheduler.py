"""A scheduler to look into and to steer, whose answers are a test's to set; and samples made in one line."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from engine_host.engine.port import FrontRequest
from engine_host.live.sample import (
    REQUEST,
    STEP,
    BlockState,
    DialName,
    DialRange,
    LiveSample,
    RequestState,
)

RANGES: Mapping[DialName, DialRange] = {
    DialName.MAX_ACTIVE_SEQS: DialRange(1, 256, 256),
    DialName.MAX_SCHEDULED_TOKENS: DialRange(16, 8192, 8192),
    DialName.SPECULATIVE_TOKENS: DialRange(0, 5, 5),
}


def started_with(ranges: Mapping[DialName, DialRange]) -> dict[DialName, int]:
    return {name: span.start for name, span in ranges.items()}


@dataclass
class ScriptedScheduler:
    """See `engine_host.engine.port.LiveScheduler`. It applies dials at once, unless told otherwise."""

    ranges: Mapping[DialName, DialRange] = field(default_factory=lambda: dict(RANGES))
    missing: Mapping[DialName, str] = field(default_factory=dict)
    newest: list[LiveSample] = field(default_factory=list)
    """What `samples` gives, one an engine core."""
    ran: npt.NDArray[Any] = field(default_factory=lambda: np.empty(0, STEP))
    """What `steps` gives, as far as they are new enough."""
    in_force: dict[DialName, int] = field(default_factory=dict)
    applied: list[dict[DialName, int]] = field(default_factory=list)
    """Every call of `set_dials` that succeeded."""
    does_not_answer: bool = False
    may_apply: asyncio.Event = field(default_factory=asyncio.Event)
    """Cleared by a test, `set_dials` waits for it."""

    def __post_init__(self) -> None:
        self.in_force = started_with(self.ranges) | self.in_force
        self.may_apply.set()

    def samples(self) -> Sequence[LiveSample]:
        return self.newest

    def steps(self, after: float) -> npt.NDArray[Any]:
        return self.ran[self.ran["at"] > after]

    async def set_dials(self, values: Mapping[DialName, int]) -> None:
        await self.may_apply.wait()
        for name, value in values.items():
            span = self.ranges[name]
            if not span.low <= value <= span.high:
                raise ValueError(f"{name} {value} is not within {span.low} to {span.high}")
        if self.does_not_answer:
            raise TimeoutError("engine core 0 did not answer within 5 s")
        self.in_force.update(values)
        self.applied.append(dict(values))


def front_request(
    id: str,
    *,
    age_s: float = 1.0,
    waited_s: float | None = None,
    silent_s: float | None = None,
    prompt: int = 10,
    generated: int = 0,
    max_tokens: int | None = 100,
) -> FrontRequest:
    return FrontRequest(id, time.time() - age_s, waited_s, silent_s, prompt, generated, max_tokens)


def request_records(*rows: Mapping[str, Any]) -> npt.NDArray[Any]:
    """`REQUEST` records; of each only what a test is about, e.g. `{"id": "a", "state": RequestState.WAITING}`."""
    records = np.zeros(len(rows), REQUEST)
    records["state"] = RequestState.RUNNING
    records["arrived"] = time.time() - 1.0
    for record, row in zip(records, rows, strict=True):
        for key, value in row.items():
            record[key] = value.encode()[:96] if isinstance(value, str) else value
    return records


def block_states(*, free: int = 0, cached: int = 0, active: int = 0, shared: int = 0) -> npt.NDArray[np.uint8]:
    """Shared blocks first, free ones last."""
    counts = {BlockState.SHARED: shared, BlockState.ACTIVE: active, BlockState.CACHED: cached, BlockState.FREE: free}
    return np.repeat(np.array(list(counts), np.uint8), list(counts.values()))


def live_sample(
    requests: npt.NDArray[Any] | None = None,
    states: npt.NDArray[np.uint8] | None = None,
    *,
    engine_index: int = 0,
    at: float | None = None,
    seq: int = 1,
    waiting_by_reason: Mapping[str, int] | None = None,
    dials: Mapping[DialName, int] | None = None,
) -> LiveSample:
    """One core's; the usage is that of its blocks."""
    states = block_states(free=100) if states is None else states
    in_use = int((states >= BlockState.ACTIVE).sum())
    return LiveSample(
        engine_index=engine_index,
        seq=seq,
        at=time.time() if at is None else at,
        usage=in_use / max(1, len(states)),
        states=states,
        requests=request_records() if requests is None else requests,
        waiting_by_reason=waiting_by_reason or {},
        dials=started_with(RANGES) if dials is None else dials,
    )
