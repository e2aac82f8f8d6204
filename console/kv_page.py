"""The KV screen as lines: how full, since when, with what, for how long, and which blocks.

Pure like the overview. The figures are the snapshot's; the map and who holds most are asked for, in as many cells as
fit below the figures.
"""

from __future__ import annotations

from console import format as fmt
from console import panels
from console.charts import history_chart
from console.frame import HEAD, Moment, opening, sized
from console.kv_map import cells_that_fit, legend, map_rows
from console.labels import LABEL, label, over, sub
from console.lines import BLANK, Line, Tone, cells, clip, faded, line, spread
from console.model import Series, State, is_stale
from console.polled import Polled, is_old, no_answer, standing
from console.situation import is_without_engine, situation
from console.switch_panels import wrapped
from engine_host.protocol.methods import KvHolder, KvMap
from engine_host.protocol.snapshot import Kv, Snapshot

TALL_FROM = 34
"""Rows from which the chart and the list of holders get more of them."""

FULL_SOON_S = 60.0
"""Nearer than this, full is a warning: about what it takes to read it and do something."""


def kv_page(live: State, polled: Polled[KvMap], moment: Moment, width: int, height: int) -> list[Line]:
    top = opening(live, moment, width, height, keeps=HEAD, without_engine="so there is no KV cache")
    if top.snapshot is None:
        return sized(top.rows, width, height)
    state, now, snapshot = top.state, top.now, top.snapshot
    figures = _figures(snapshot, state.series.get("kv.usage"), width, height)
    rows = map_rows_that_fit(snapshot, width, height)
    below = [
        *_map(polled, snapshot.kv.block_size, now, width, rows),
        *_holders(polled, snapshot, width, _holder_rows(height)),
    ]
    if is_old(polled, state, now):
        below[1:] = faded(below[1:])
    if is_stale(state, now):
        figures, below = faded(figures), faded(below)
    return sized([*top.rows, *figures, *below], width, height)


def cells_wanted(live: State, width: int, height: int) -> int | None:
    """How many cells to ask the host for; None while there is nothing to ask about."""
    snapshot = live.snapshot
    if snapshot is None or is_without_engine(snapshot):
        return None
    return cells_that_fit(width, map_rows_that_fit(snapshot, width, height))


def map_rows_that_fit(snapshot: Snapshot, width: int, height: int) -> int:
    """Under the head, what is told of the situation and the figures; above the legend and the holders."""
    told = situation(snapshot, width, height - HEAD)
    taken = HEAD + len(told) + _chart_rows(height) + _FIGURES + 2 + _holder_rows(height)
    return max(1, height - taken)


_FIGURES = 6
"""Rows of figures beside the chart."""


def _chart_rows(height: int) -> int:
    return 2 if height < TALL_FROM else 5


def _holder_rows(height: int) -> int:
    return 3 if height < TALL_FROM else 9


def _figures(snapshot: Snapshot, series: Series | None, width: int, height: int) -> list[Line]:
    cache = snapshot.kv
    return [
        *panels.kv(snapshot, width),
        *history_chart("5 min", series, width, _chart_rows(height), 1.0),
        _blocks(cache),
        _waste(cache),
        panels.prefix(snapshot),
        _capacity(snapshot),
        _forecast(snapshot),
    ]


def _blocks(cache: Kv) -> Line:
    blocks = cache.blocks
    return line(
        label("Blocks"),
        f"held {fmt.count(blocks.active):>7}   shared {fmt.count(blocks.shared):>7}",
        f"   cached {fmt.count(blocks.cached):>7}   free {fmt.count(blocks.free):>7}",
    )


def _waste(cache: Kv) -> Line:
    told = "of the room in held blocks holds no token"
    unknown = "known with the scheduler's own figures only"
    return line(
        label("Waste"),
        f"{fmt.percent(cache.internal_waste):>7}   ",
        (told if cache.internal_waste is not None else unknown, Tone.FAINT),
    )


def _capacity(snapshot: Snapshot) -> Line:
    cache = snapshot.kv
    longest = snapshot.engine.max_model_len_tokens
    return line(
        label("Capacity"),
        f"{fmt.count(cache.capacity_tokens)} tokens: ",
        (f"{fmt.significant(cache.longest_requests)}", Tone.STRONG),
        f" requests of the longest length, {fmt.count(longest)}",
    )


def _forecast(snapshot: Snapshot) -> Line:
    cache, queue = snapshot.kv, snapshot.queue
    if cache.usage is not None and cache.usage >= panels.KV_BAD:
        waits = f": {fmt.count(queue.waiting)} wait, {fmt.rate(queue.preemptions_per_s)} preempted"
        return line(label("Pressure"), (f"▲ full now{waits}", Tone.WARN), over(queue.window_s))
    window = over(cache.full_rate_window_s)
    if cache.full_in_s is not None:
        tone = Tone.WARN if cache.full_in_s < FULL_SOON_S else Tone.STRONG
        mark = "▲ " if tone is Tone.WARN else ""
        return line(label("Pressure"), (f"{mark}at this rate full in {fmt.span(cache.full_in_s)}", tone), window)
    return line(label("Pressure"), fmt.DASH if cache.usage is None else "does not fill now", window)


def _map(polled: Polled[KvMap], block_size: int | None, now: float, width: int, rows: int) -> list[Line]:
    """A heading, `rows` of the map, the legend."""
    found = polled.answer
    fresh = standing(polled, "the map", now)
    if found is None or found.unavailable_reason is not None:
        why = no_answer(polled, width) if found is None else _why_none(found, width)
        return [spread(line(label("Map")), fresh, width), *[*why, *[BLANK] * rows][:rows], BLANK]
    left_out = len(found.cells) - cells_that_fit(width, rows)
    told = f"a cell is {fmt.many(found.blocks_per_cell, 'block')} of {fmt.count(block_size)} tokens, by number"
    told += f"; {fmt.many(left_out, 'cell')} cut off" if left_out > 0 else ""
    drawn = map_rows(found.cells, width, rows)
    return [spread(line(label("Map"), (told, Tone.FAINT)), fresh, width), *[*drawn, *[BLANK] * rows][:rows], legend()]


def _why_none(found: KvMap, width: int) -> list[Line]:
    parts = wrapped(f"{fmt.DASH} {found.unavailable_reason}", width - 3)
    return [line("  ", (part, Tone.NOTICE)) for part in parts]


def _holders(polled: Polled[KvMap], snapshot: Snapshot, width: int, rows: int) -> list[Line]:
    if polled.answer is None or polled.answer.unavailable_reason is not None:
        return [BLANK] * rows
    total = snapshot.kv.blocks.total
    held = polled.answer.holders[:rows]
    if not held:
        return [line(label("Holds most"), ("no request holds a block", Tone.FAINT)), *[BLANK] * (rows - 1)]
    shown = [_holder(holder, i == 0, total, width) for i, holder in enumerate(held)]
    return [*shown, *[BLANK] * (rows - len(shown))]


def _holder(holder: KvHolder, is_first: bool, total: int | None, width: int) -> Line:
    share = holder.blocks / total if total and total > 0 else None
    tail = f"{fmt.count(holder.blocks):>8} blocks {fmt.percent(share):>7}  "
    room = max(8, width - LABEL - len(tail) - 16)
    name = clip(fmt.clean(holder.id), room)
    bar = fmt.bar(share, 12)
    padded = name + " " * (min(room, 44) - cells(line(name)))
    return line(label("Holds most") if is_first else sub(""), padded, tail, (bar, Tone.BAR))
