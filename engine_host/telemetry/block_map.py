"""The KV blocks in groups, by state, and who holds most: what a map of them is drawn from. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from engine_host.live.sample import BlockState, LiveSample
from engine_host.protocol.methods import KvHolder, KvMap
from engine_host.telemetry.request_list import id_of

HOLDERS = 8
_NO_BLOCK = 255
"""Fills up the last group."""


def block_map(samples: Sequence[LiveSample], cells: int) -> KvMap:
    """At most `cells` groups of the blocks of all engine cores, one core's after the other's. At least one sample."""
    states = np.concatenate([sample.states for sample in samples])
    per_cell = max(1, -(-len(states) // cells))
    filled = -(-len(states) // per_cell)
    padded = np.full(filled * per_cell, _NO_BLOCK, np.uint8)
    padded[: len(states)] = states
    grid = padded.reshape(filled, per_cell)
    free, cached, active, shared = (np.count_nonzero(grid == state, axis=1).tolist() for state in BlockState)
    return KvMap(
        at=min(sample.at for sample in samples),
        blocks_per_cell=per_cell,
        cells=list(zip(free, cached, active, shared, strict=True)),
        holders=_holders(samples),
    )


def _holders(samples: Sequence[LiveSample]) -> list[KvHolder]:
    records = np.concatenate([sample.requests for sample in samples])
    most = np.argsort(-records["blocks"].astype(np.int64), kind="stable")[:HOLDERS]
    return [KvHolder(id=id_of(record), blocks=int(record["blocks"])) for record in records[most] if record["blocks"]]
