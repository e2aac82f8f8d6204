"""The overview as lines: which panels, where, for a terminal of this size.

Pure: (state, now, size) -> exactly `height` lines. 80x24 holds all that an operator needs; more rows bring charts,
all three latency windows and more events; from 160 columns on the panels stand in two columns. Below 80x24 one line
remains with what matters most.
"""

from __future__ import annotations

from console import format as fmt
from console import panels
from console.charts import history_chart
from console.frame import HEAD, WAITING, Moment, head, seen, sized
from console.lines import BLANK, Line, Tone, beside, faded, line
from console.model import State, is_stale
from console.situation import is_without_engine, situation
from console.words import state_word, trouble
from engine_host.protocol.snapshot import Snapshot

MIN_WIDTH = 80
MIN_HEIGHT = 23
"""Rows of the board; with the footer 24, the smallest terminal that shows all."""

TWO_COLUMNS_FROM = 160
"""Columns at which two panels of 79 stand side by side."""

CHARTS_FROM = 34
"""Rows from which charts get several rows each."""


def overview(live: State, moment: Moment, width: int, height: int) -> list[Line]:
    """Exactly `height` lines of exactly `width` cells."""
    state, now = seen(live, moment)
    if width < MIN_WIDTH or height < MIN_HEIGHT:
        return sized(essential(state, now, is_frozen=live.frozen is not None), width, height)
    top = head(state, live, moment, now, width)
    if state.snapshot is None:
        return sized([top[1], BLANK, WAITING], width, height)
    body = _body(state, state.snapshot, width, height - HEAD)
    if is_stale(state, now):
        body = faded(body)
    return sized([*top, *body], width, height)


def essential(state: State, now: float, *, is_frozen: bool) -> list[Line]:
    """For a terminal too small: state, KV, queue on one line, and what size is wanted on the next."""
    wanted = line((f"too small: {MIN_WIDTH}x{MIN_HEIGHT + 1} needed", Tone.WARN))
    snapshot = state.snapshot
    if snapshot is None:
        return [line("no values yet"), wanted]
    word, tone = state_word(snapshot.state)
    frozen = " FROZEN" if is_frozen else ""
    mark = frozen + " STALE" if is_stale(state, now) else frozen
    stalled = f" {fmt.clean(snapshot.queue.stalled_reason or 'stalled')}".upper() if trouble(snapshot) else ""
    return [
        line(
            (word + mark + stalled, tone if not stalled else Tone.BAD),
            f" KV {fmt.percent(snapshot.kv.usage)}"
            f" run {fmt.count(snapshot.queue.running)} wait {fmt.count(snapshot.queue.waiting)}",
        ),
        wanted,
    ]


def _body(state: State, snapshot: Snapshot, width: int, height: int) -> list[Line]:
    event_rows = 4 if height < CHARTS_FROM else 8
    rows = situation(snapshot, width, height - event_rows - 3)
    gap = [BLANK] if rows else []
    left = height - len(rows) - len(gap)
    if is_without_engine(snapshot):
        middle = [panels.machine(snapshot), *panels.gpus(snapshot, 3, show_processes=False)]
    elif width >= TWO_COLUMNS_FROM:
        middle = _two_columns(state, snapshot, width, left - event_rows - 1)
    else:
        middle = _one_column(state, snapshot, width, left - 3)
    room = left - len(middle)
    separated = [BLANK] if room > 3 else []
    recent = panels.events(state.events, width, max(1, room - len(separated)))
    return [*rows, *gap, *middle, *separated, *recent]


def _one_column(state: State, snapshot: Snapshot, width: int, height: int) -> list[Line]:
    names = ("ttft", "itl", "e2e")
    tall = height >= CHARTS_FROM - 5
    flow = _chart(state, "throughput.generation_tokens_per_s", "out", width, 3, unit=" /s") if tall else []
    return [
        *panels.kv(snapshot, width),
        *panels.kv_history(snapshot, state.series.get("kv.usage"), width, 3 if tall else 1),
        *panels.requests(snapshot),
        *panels.speculation(snapshot, width),
        panels.tokens(snapshot),
        *flow,
        panels.prefix(snapshot),
        *(panels.latency_windows(snapshot, names) if tall else panels.latency(snapshot, names, "1m")),
        panels.throttle(snapshot, width),
        *(panels.auto(snapshot, width) if tall else []),
        panels.machine(snapshot),
        *panels.gpus(snapshot, 2 if tall else 1, show_processes=False),
    ][:height]


def _two_columns(state: State, snapshot: Snapshot, width: int, height: int) -> list[Line]:
    """Charts share out the rows that the figures leave."""
    half = (width - 2) // 2
    tall = height >= CHARTS_FROM - 6
    gap = [BLANK] if tall else []
    figures = [panels.prefix(snapshot), *panels.requests(snapshot), *panels.speculation(snapshot, half)]
    rows = _chart_rows(height - 1 - len(figures) - 2 * len(gap), charts=4)
    left = [
        *panels.kv(snapshot, half),
        *panels.kv_history(snapshot, state.series.get("kv.usage"), half, rows),
        panels.prefix(snapshot),
        *gap,
        *panels.requests(snapshot),
        *_chart(state, "queue.running", "running", half, rows),
        *_chart(state, "queue.waiting", "waiting", half, rows),
        *gap,
        *panels.speculation(snapshot, half),
        *_acceptance_chart(state, half, rows),
    ]
    names = ("ttft", "itl", "e2e", "queue")
    lower = [
        *gap,
        *(panels.latency_windows(snapshot, names) if tall else panels.latency(snapshot, names, "1m")),
        *gap,
        panels.throttle(snapshot, half),
        *(panels.auto(snapshot, half) if tall else []),
        panels.machine(snapshot),
        *panels.gpus(snapshot, 8 if tall else 2, show_processes=tall),
    ]
    rows = _chart_rows(height - 1 - len(lower), charts=2)
    right = [
        panels.tokens(snapshot),
        *_chart(state, "throughput.generation_tokens_per_s", "out", half, rows, unit=" /s"),
        *_chart(state, "throughput.prompt_tokens_per_s", "in", half, rows, unit=" /s"),
        *lower,
    ]
    return beside(left[:height], right[:height], half, width)


def _chart_rows(room: int, charts: int) -> int:
    return max(1, min(6, room // charts))


def _chart(state: State, series: str, name: str, width: int, height: int, unit: str = "") -> list[Line]:
    return history_chart(name, state.series.get(series), width, height, None, unit)


def _acceptance_chart(state: State, width: int, height: int) -> list[Line]:
    if state.snapshot is None or state.snapshot.speculation.method is None:
        return []
    series = state.series.get("speculation.acceptance_rate")
    return history_chart("accepted", series, width, height, 1.0)
