"""Fixed values of what only the scheduler inside knows: blocks, requests, dials, speculation by window."""

from __future__ import annotations

from typing import Any

import msgspec

from engine_host.protocol.methods import KvHolder, KvMap, RequestList, RequestRow
from engine_host.protocol.snapshot import (
    Blocks,
    Dial,
    Kv,
    Snapshot,
)
from engine_host.protocol.speculation import Choice, Recommendation, Speculation, SpeculationWindow
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
        ),
        speculation=speculation(),
        dials=dials(),
    )
    return msgspec.structs.replace(whole, **changes)


def filling() -> Snapshot:
    """Full in 40 s."""
    base = live()
    blocks = Blocks(total=BLOCKS, active=56_900, shared=3_624, cached=1_200, free=2_312)
    return live(
        kv=msgspec.structs.replace(base.kv, usage=0.942, blocks=blocks, full_in_s=40.0, full_rate_window_s=30.0)
    )


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


ACCEPTED = (0.88, 0.79, 0.70, 0.61, 0.55)
"""By position, in a minute."""

CHOICES = (
    (1.00, 17.1),
    (1.88, 18.9),
    (2.67, 20.4),
    (3.37, 22.2),
    (3.98, 27.9),
    (4.53, 33.5),
    (4.91, 39.0),
    (5.12, 44.8),
    (5.24, 50.3),
)
"""By K: tokens and ms a step. K 3 gives most: later ones are seldom kept, and at 37 requests no longer for free."""


def window(factor: float, seconds: float) -> SpeculationWindow:
    return SpeculationWindow(
        drafts=int(560 * seconds),
        acceptance_rate=0.712 * factor,
        mean_acceptance_length=1 + 2.93 * factor,
        per_position=[rate * factor for rate in ACCEPTED],
        drafted_per_s=2_730.0,
        accepted_per_s=1_944.0 * factor,
    )


def choices() -> list[Choice]:
    return [
        Choice(k=k, tokens_per_step=tokens, step_s=ms / 1e3, is_measured=k in {0, 3, 5}, tokens_per_s=tokens / ms * 1e3)
        for k, (tokens, ms) in enumerate(CHOICES)
    ]


def recommendation(**changes: Any) -> Recommendation:
    whole = Recommendation(
        k=3,
        text="K 3 gives 1.12 times the tokens/s of K 5 at 37 requests: 3.37 tokens in 22.2 ms a step, against 4.53 in "
        "33.5 ms.",
        concurrency=37,
        gain=1.12,
        choices=choices(),
    )
    return msgspec.structs.replace(whole, **changes)


def trial() -> Recommendation:
    """Not enough is known; another K has to be measured first."""
    return Recommendation(
        text="not known yet: at 37 requests only K 5 has been measured in the last 5 minutes, so what a draft token "
        "costs is unknown. Run K 2 for 30 s.",
        concurrency=37,
        try_k=2,
        try_s=30,
    )


def speculation(**changes: Any) -> Speculation:
    whole = msgspec.structs.replace(
        sample.serving().speculation,
        k_max=8,
        estimated_speedup=2.31,
        windows={"10s": window(0.97, 10), "1m": window(1.0, 60), "5m": window(1.04, 300)},
        recommendation=recommendation(),
    )
    return msgspec.structs.replace(whole, **changes)


def dials(**changes: Dial) -> dict[str, Dial]:
    """One stands as it was started, one was set for a while, one for good."""
    whole = {
        "max_active_seqs": Dial(
            value=64,
            low=1,
            high=256,
            start=256,
            reason="batch job tonight",
            who="maria",
            since=sample.AT - 300,
            until=sample.AT + 482,
        ),
        "max_scheduled_tokens": Dial(value=8_192, low=16, high=8_192, start=8_192),
        "speculative_tokens": Dial(value=5, low=0, high=8, start=8, who="ops", since=sample.AT - 3_000),
    }
    return {**whole, **changes}


def later(
    seconds: float,
    *,
    k: int = 5,
    moved_at: float = 0.0,
    tokens_per_s: float = 2_140.0,
    running: int = 37,
    **changes: Any,
) -> Snapshot:
    """`seconds` after the fixed moment; K was moved `moved_at` after it."""
    base = live()
    replace = msgspec.structs.replace
    since = sample.AT + moved_at if k != 5 else sample.AT - 3_000
    dial = replace(base.dials["speculative_tokens"], value=k, since=since)
    whole = live(
        dials=dials(speculative_tokens=dial),
        speculation=replace(base.speculation, k=k),
        throughput=replace(base.throughput, generation_tokens_per_s=tokens_per_s),
        queue=replace(base.queue, running=running),
        at=sample.AT + seconds,
        seq=100 + int(seconds),
    )
    return replace(whole, **changes)


def no_scheduler() -> Snapshot:
    """As the host tells it of a vLLM that it does not know from inside."""
    base = sample.serving()
    return sample.serving(engine=msgspec.structs.replace(base.engine, live_unavailable_reason=NO_SCHEDULER))
