"""Fixed values of what only the scheduler inside knows: blocks, requests, dials, speculation by window."""

from __future__ import annotations

from typing import Any

import msgspec

from engine_host.protocol.methods import KvHolder, KvMap, RequestList, RequestRow
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


def request(number: int, **changes: Any) -> RequestRow:
    """The one that came as the `number`th; the youngest wait."""
    age_s = 200.0 / (number + 1)
    whole = RequestRow(
        id=request_id(number),
        state="running",
        age_s=age_s,
        waited_s=age_s / 20,
        prompt_tokens=900 + number * 37 % 1_100,
        generated_tokens=int(age_s * 31),
        max_tokens=8_192,
        cached_tokens=512 * (number % 3),
        blocks=60 + number * 13 % 90,
        priority=0,
        preemptions=1 if number % 11 == 5 else 0,
        drafted=int(age_s * 40),
        accepted=int(age_s * 28),
    )
    return msgspec.structs.replace(whole, **changes)


def waiting(number: int, **changes: Any) -> RequestRow:
    age_s = 200.0 / (number + 1)
    nothing = {"generated_tokens": 0, "cached_tokens": 0, "blocks": 0, "drafted": 0, "accepted": 0, "waited_s": age_s}
    return request(number, **{"state": "waiting", **nothing, **changes})


def requests(running: int = 37, waits: int = 12, *more: RequestRow, **changes: Any) -> RequestList:
    rows = [request(i) for i in range(running)] + [waiting(running + i) for i in range(waits)]
    rows += more
    by_state = {
        name: sum(row.state == name for row in rows) for name in ("waiting", "deferred", "preempted", "running")
    }
    whole = RequestList(requests=rows, total=len(rows), by_state=by_state, at=sample.AT)
    return msgspec.structs.replace(whole, **changes)


def no_scheduler_requests(params: Any = None) -> RequestList:
    """As the front end alone knows them."""
    unknown = {"cached_tokens": None, "blocks": None, "priority": None, "preemptions": None}
    rows = [msgspec.structs.replace(row, **unknown, drafted=None, accepted=None) for row in requests().requests]
    return requests(requests=rows, unavailable_reason=NO_SCHEDULER)


def hung_requests(params: Any = None) -> RequestList:
    rows = [msgspec.structs.replace(row, trouble="hung: no token for 42 s") for row in requests(37, 0).requests]
    return requests(requests=[*rows, *(waiting(37 + i) for i in range(12))])


STUCK = "stuck: its prompt has 3,104 tokens, the KV cache holds 2,144; it can never be scheduled"


def stuck_requests(params: Any = None) -> RequestList:
    return requests(0, 4, requests=[waiting(0, prompt_tokens=3_104, trouble=STUCK), *(waiting(i) for i in range(1, 4))])


def stuck() -> Snapshot:
    base = live()
    queue = msgspec.structs.replace(base.queue, running=0, waiting=4, stalled=True, stalled_reason="stuck")
    return live(queue=queue, engine=msgspec.structs.replace(base.engine, last_step_age_s=95.0))


def hung() -> Snapshot:
    """With the scheduler inside, which tells nothing new any more."""
    found = sample.hung()
    return live(queue=found.queue, engine=found.engine)
