"""One request as a row of the queue's table: as many columns as fit, each as wide as its numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from console import format as fmt
from console.lines import Line, Tone, cells, fit, line
from console.queue_desk import ENDED, UNLISTED
from engine_host.protocol.methods import RequestOrder, RequestRow

MARK = 2
"""Cells before the id: the cursor, and what is wrong."""

MIN_ID = 8
WIDEST_ID = 48


@dataclass(frozen=True, slots=True)
class Column:
    heading: str
    width: int
    wide: int
    """Width where there is room, with a heading written out."""
    spelt: str
    text: Callable[[RequestRow, int], str]
    drop: int
    """Columns are left out by this number, highest first, where there is no room for all."""
    order: RequestOrder | None = None


def _number(value: int | None, width: int) -> str:
    """Exact while it fits."""
    exact = fmt.count(value)
    return exact if len(exact) <= width else fmt.si(value)


def _span(seconds: float, width: int) -> str:
    """What is too short to be written out is too short to matter in a queue."""
    text = fmt.span(seconds)
    return "<1 ms" if len(text) > width and seconds < 1e-3 else text


def _acceptance(row: RequestRow, width: int) -> str:
    rate = acceptance(row)
    return fmt.DASH if rate is None else f"{rate * 100:.0f} %"


def acceptance(row: RequestRow) -> float | None:
    """Of all its draft tokens so far; None while it has none."""
    if not row.drafted or row.accepted is None or row.drafted < 0:
        return None
    return row.accepted / row.drafted


_AGE, _WAITED, _PROMPT, _BLOCKS = RequestOrder.AGE, RequestOrder.WAITED, RequestOrder.PROMPT, RequestOrder.BLOCKS
_MADE, _PREEMPTED = RequestOrder.GENERATED, RequestOrder.PREEMPTIONS

COLUMNS: tuple[Column, ...] = (
    Column("state", 9, 9, "state", lambda row, width: fmt.clean(row.state), 0),
    Column("age", 6, 8, "age", lambda row, width: _span(row.age_s, width), 0, _AGE),
    Column("waited", 6, 8, "waited", lambda row, width: _span(row.waited_s, width), 2, _WAITED),
    Column("prompt", 6, 9, "prompt", lambda row, width: _number(row.prompt_tokens, width), 1, _PROMPT),
    Column("gen", 6, 9, "generated", lambda row, width: _number(row.generated_tokens, width), 0, _MADE),
    Column("cached", 6, 9, "cached", lambda row, width: _number(row.cached_tokens, width), 4),
    Column("blocks", 6, 8, "blocks", lambda row, width: _number(row.blocks, width), 0, _BLOCKS),
    Column("prio", 4, 5, "prio", lambda row, width: _number(row.priority, width), 6),
    Column("pre", 3, 9, "preempted", lambda row, width: _number(row.preemptions, width), 5, _PREEMPTED),
    Column("acc", 5, 8, "accepted", _acceptance, 3),
)

_WIDE_FROM = MARK + 24 + sum(column.wide + 1 for column in COLUMNS)


def heading_row(order: RequestOrder, width: int) -> Line:
    """The column that the list is sorted by is marked."""
    id_width, columns, is_wide = layout(width)
    pieces = [(" " * MARK + f"{'id':<{id_width}}", Tone.FAINT)]
    for column in columns:
        name, size = (column.spelt, column.wide) if is_wide else (column.heading, column.width)
        if column.order is order:
            pieces += [(" ", Tone.FAINT), (f"{'↓' + name:>{size}}"[-size - 1 :], Tone.STRONG)]
        else:
            pieces.append((f" {name:<{size}}" if column.heading == "state" else f" {name:>{size}}", Tone.FAINT))
    return line(*pieces)


def request_row(row: RequestRow, is_chosen: bool, width: int) -> Line:
    id_width, columns, is_wide = layout(width)
    mark = ("▸" if is_chosen else " ") + ("▲" if row.trouble else " ")
    tone = Tone.FAINT if row.state in {ENDED, UNLISTED} else Tone.WARN if row.trouble else Tone.PLAIN
    pieces = [(mark, Tone.WARN if row.trouble else Tone.PLAIN), (tail(fmt.clean(row.id), id_width), tone)]
    for column in columns:
        size = column.wide if is_wide else column.width
        text = column.text(row, size)[:size]
        state = column.heading == "state"
        pieces.append((f" {text:<{size}}" if state else f" {text:>{size}}", tone if state else _faint_if_gone(tone)))
    drawn = fit(line(*pieces), width)
    return tuple((text, Tone.CHOSEN) for text, _ in drawn) if is_chosen else drawn


def layout(width: int) -> tuple[int, list[Column], bool]:
    """(cells for the id, the columns that fit, whether they are written out)."""
    if width >= _WIDE_FROM:
        left = width - MARK - sum(column.wide + 1 for column in COLUMNS)
        return min(WIDEST_ID, left), list(COLUMNS), True
    columns = list(COLUMNS)
    while (left := width - MARK - sum(column.width + 1 for column in columns)) < MIN_ID and columns:
        columns.remove(max(columns, key=lambda column: column.drop))
    return max(1, left), columns, False


def tail(text: str, width: int) -> str:
    """The end of an id, which tells it from others; they all begin alike. Exactly `width` cells."""
    if cells(line(text)) <= width:
        return text + " " * (width - cells(line(text)))
    kept = text[-(width - 1) :] if width > 1 else ""
    while cells(line(kept)) > width - 1:
        kept = kept[1:]
    return "…" + kept + " " * (width - 1 - cells(line(kept)))


def _faint_if_gone(tone: Tone) -> Tone:
    return Tone.FAINT if tone is Tone.FAINT else Tone.PLAIN
