"""The KV blocks in groups, by state, and who holds most: what a map of them is drawn from. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from engine_host.live.sample import BlockState, LiveSample
from engine_host.protocol.methods import KvHolder, KvMap
from engine_host.telemetry.request_list import ID_CHARS

HOLDERS = 8
_STATES = len(BlockState)


def block_map(samples: Sequence[LiveSample], cells: int) -> KvMap:
    """At most `cells` groups of the blocks of all engine cores, one core's after the other's. At least one sample."""
    states = np.concatenate([sample.states for sample in samples])
    per_cell = max(1, -(-len(states) // cells))
    group = np.arange(len(states)) // per_cell
    filled = -(-len(states) // per_cell)
    counts = np.bincount(group * _STATES + states, minlength=filled * _STATES).reshape(filled, _STATES)
    return KvMap(
        at=min(sample.at for sample in samples),
        blocks_per_cell=per_cell,
        cells=[(free, cached, active, shared) for free, cached, active, shared in counts.tolist()],
        holders=_holders(samples),
    )


def _holders(samples: Sequence[LiveSample]) -> list[KvHolder]:
    records = np.concatenate([sample.requests for sample in samples])
    most = np.argsort(-records["blocks"].astype(np.int64), kind="stable")[:HOLDERS]
    return [
        KvHolder(id=bytes(record["id"]).decode(errors="ignore")[:ID_CHARS], blocks=int(record["blocks"]))
        for record in records[most]
        if record["blocks"]
    ]
