"""The figures of a snapshot that only the scheduler knows, from its newest samples. Pure.

Several engine cores (data parallel): blocks and requests are summed, the usage is told by core.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from engine_host.engine.port import EngineFacts
from engine_host.live.sample import BlockState, LiveSample, RequestState
from engine_host.protocol.snapshot import Blocks


@dataclass(frozen=True)
class LiveFigures:
    blocks: Blocks
    usage_by_engine: list[float]
    internal_waste: float | None
    running: int
    waiting_by_reason: dict[str, int]
    oldest_wait_s: float | None
    """Of those that have not run yet."""

    @property
    def waiting(self) -> int:
        return sum(self.waiting_by_reason.values())


def live_figures(samples: Sequence[LiveSample], facts: EngineFacts, now: float, *, is_empty: bool) -> LiveFigures:
    """`now` is Unix time. `is_empty`: the front end has no request left and the scheduler is silent, so what its
    samples still hold has ended since."""
    if is_empty and any(len(sample.requests) for sample in samples):
        total = sum(len(sample.states) for sample in samples)
        # Whether ended requests left their blocks to the prefix cache is not known.
        return LiveFigures(Blocks(total=total, active=0, shared=0), [0.0] * len(samples), None, 0, {}, None)
    counts = np.sum([np.bincount(sample.states, minlength=len(BlockState)) for sample in samples], axis=0)
    free, cached, active, shared = (int(count) for count in counts)
    reasons: dict[str, int] = {}
    for sample in samples:
        for reason, count in sample.waiting_by_reason.items():
            reasons[reason] = reasons.get(reason, 0) + count
    return LiveFigures(
        blocks=Blocks(total=int(counts.sum()), active=active + shared, cached=cached, free=free, shared=shared),
        usage_by_engine=[sample.usage for sample in samples],
        internal_waste=_internal_waste(samples, facts),
        running=sum(int((sample.requests["state"] == RequestState.RUNNING).sum()) for sample in samples),
        waiting_by_reason=reasons,
        oldest_wait_s=_oldest_wait_s(samples, now),
    )


def _internal_waste(samples: Sequence[LiveSample], facts: EngineFacts) -> float | None:
    """1 - tokens stored / room in the blocks held, both counted once a request: a shared block weighs the same on
    either side. None where layers let go of tokens (sliding windows), as blocks then hold less than was computed."""
    held = sum(int(sample.requests["blocks"].sum()) for sample in samples)
    per_block = _tokens_per_block(facts, len(samples))
    if not held or per_block is None:
        return None
    waste = 1 - sum(sample.stored_tokens for sample in samples) / (held * per_block)
    return waste if waste >= 0 else None


def _tokens_per_block(facts: EngineFacts, cores: int) -> float | None:
    """Of a request, in all its layers: less than the block size where groups of layers have blocks of their own."""
    if facts.block_size is None or not facts.total_blocks or facts.capacity_tokens is None:
        return facts.block_size
    # vLLM counts its null blocks into the capacity.
    return min(float(facts.block_size), facts.capacity_tokens / (facts.total_blocks + cores))


def _oldest_wait_s(samples: Sequence[LiveSample], now: float) -> float | None:
    arrivals = [
        float(waiting["arrived"].min())
        for sample in samples
        if len(waiting := sample.requests[sample.requests["state"] <= RequestState.DEFERRED])
    ]
    return max(0.0, now - min(arrivals)) if arrivals else None
