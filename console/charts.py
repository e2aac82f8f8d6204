"""A series over the last five minutes, drawn in cells beside a label."""

from __future__ import annotations

from console import format as fmt
from console.labels import LABEL, sub
from console.lines import Line, Tone, line
from console.model import Series

CHART_SPAN_S = 300.0

SCALE = 10
"""Cells to the right of a chart for its highest and lowest value."""


def history_chart(
    name: str, series: Series | None, width: int, height: int, top: float | None, unit: str = ""
) -> list[Line]:
    """Five minutes as `height` rows of `width` cells and a scale. `top` None: up to the highest value shown.

    Percent when `top` is given, as only fractions have a natural top.
    """
    chart_width = max(1, width - LABEL - SCALE)
    values = buckets(series, chart_width)
    known = [v for v in values if v is not None]
    highest = top if top is not None else max(known, default=0.0)
    peak = (fmt.percent(top) if top is not None else fmt.si(highest) + unit) if known else fmt.DASH
    rows = fmt.chart(values, highest, height)
    lines = []
    for index, row in enumerate(rows):
        mark = f" {peak}" if index == 0 else " 0, 5 min" if index == height - 1 else ""
        head = sub(name) if index == height - 1 else (" " * LABEL, Tone.PLAIN)
        lines.append(line(head, (row, Tone.BAR), (f"{mark:<{SCALE}}", Tone.FAINT)))
    return lines


def buckets(series: Series | None, width: int) -> list[float | None]:
    """The last five minutes in `width` cells."""
    if series is None:
        return [None] * width
    cell_s = max(series.step_s, CHART_SPAN_S / width)
    return fmt.bucketed(series.values, series.end_at, series.step_s, cell_s, width)
