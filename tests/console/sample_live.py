"""Fixed values of what only the scheduler inside knows: blocks, requests, dials, speculation by window."""

from __future__ import annotations

from typing import Any

import msgspec

from engine_host.protocol.methods import KvHolder, KvMap
from engine_host.protocol.snapshot import Blocks, Kv, Snapshot
from tests.console import sample

NO_SCHEDULER = "vLLM 0.40.1 is newer than what the scheduler inside is known to work with (0.26 to 0.33)"

BLOCKS = 60_412


def request_id(number: int) -> str:
    return f"chatcmpl-{number * 2_654_435_761 % 2**32:08x}{number:04x}"


def kv_map(cells: int, blocks: int = BLOCKS, **changes: Any) -> KvMap:
    """A prefix shared by many at the start, then requests with gaps, then cached remains, then what was never used."""
    each = -(-blocks // cells)
    number = -(-blocks // each)

    def cell(index: int) -> tuple[int, int, int, int]:
        size = min(each, blocks - index * each)
        place = index / number
        if place < 0.06:
            return 0, 0, 0, size
        if place < 0.68:
            held = size if index % 7 else size // 3
            return size - held, 0, held, 0
        return (0, size, 0, 0) if place < 0.84 else (size, 0, 0, 0)

    whole = KvMap(
        at=sample.AT,
        blocks_per_cell=each,
        cells=[cell(index) for index in range(number)],
        holders=[KvHolder(id=request_id(i), blocks=2_048 - 190 * i) for i in range(8)],
    )
    return msgspec.structs.replace(whole, **changes)


def no_kv_map(params: Any = None) -> KvMap:
    return KvMap(at=sample.AT, blocks_per_cell=0, cells=[], holders=[], unavailable_reason=NO_SCHEDULER)


def live(**changes: Any) -> Snapshot:
    """The healthy node, with all that the scheduler inside tells."""
    whole = sample.serving(
        kv=Kv(
            usage=0.6825,
            blocks=Blocks(total=BLOCKS, active=41_231, shared=3_624, cached=9_800, free=9_381),
            block_size=16,
            capacity_tokens=966_592,
            internal_waste=0.0312,
            longest_requests=29.5,
            full_in_s=None,
            full_rate_window_s=30.0,
        ),
    )
    return msgspec.structs.replace(whole, **changes)


def filling() -> Snapshot:
    """Full in 40 s."""
    base = live()
    blocks = Blocks(total=BLOCKS, active=56_900, shared=3_624, cached=1_200, free=2_312)
    return live(kv=msgspec.structs.replace(base.kv, usage=0.942, blocks=blocks, full_in_s=40.0))


def small_cache() -> Snapshot:
    """A cache of 67 blocks, choking: a cell of the map is one block."""
    blocks = Blocks(total=67, active=61, shared=4, cached=6, free=0)
    return live(
        kv=Kv(
            usage=0.91,
            blocks=blocks,
            block_size=32,
            capacity_tokens=2_144,
            internal_waste=0.17,
            longest_requests=1.05,
            full_in_s=6.0,
            full_rate_window_s=30.0,
        )
    )


def small_map(params: Any) -> KvMap:
    return kv_map(params.cells, 67, holders=[KvHolder(id=request_id(i), blocks=12 - i) for i in range(5)])
