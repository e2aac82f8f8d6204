"""What `dial` and `requests` say to a person, as lines. Pure functions of the wire types.

Ids are their clients' words: control characters are taken out.
"""

from __future__ import annotations

from console import format as fmt
from console.lines import Line, Tone, fit, line, plain_text
from engine_host.protocol.methods import DialSheet, RequestList, RequestRow
from engine_host.protocol.snapshot import Dial

STATES = ("running", "waiting", "deferred", "preempted")
_NARROWEST_ID = 12


def dial_lines(sheet: DialSheet) -> list[Line]:
    if not sheet.dials:
        return [line("There are no dials: ", (fmt.clean(sheet.unavailable_reason or "the engine has none"), Tone.WARN))]
    names = max(len(fmt.clean(name)) for name in sheet.dials)
    rows = [line((f"{'dial':<{names}}  {'value':>7}  {'range':<13}  {'start':>7}  set by", Tone.FAINT))]
    for name, dial in sheet.dials.items():
        is_moved = dial.value != dial.start
        rows.append(
            line(
                (f"{fmt.clean(name):<{names}}", Tone.LABEL),
                "  ",
                (f"{dial.value:>7}", Tone.STRONG if is_moved else Tone.PLAIN),
                f"  {f'{dial.low} to {dial.high}':<13}  {dial.start:>7}  ",
                *_whose(dial),
            )
        )
    return rows


def _whose(dial: Dial) -> Line:
    if dial.who is None:
        return line((fmt.DASH, Tone.FAINT))
    since = f" at {fmt.clock(dial.since)}" if dial.since is not None else ""
    until = f", until {fmt.clock(dial.until)}" if dial.until is not None else ""
    reason = f": {fmt.clean(dial.reason)}" if dial.reason else ""
    return line(fmt.clean(dial.who), (since + until, Tone.FAINT), reason)


def request_lines(found: RequestList, width: int) -> list[Line]:
    counts = ", ".join(f"{fmt.count(found.by_state[state])} {state}" for state in STATES if found.by_state.get(state))
    shown = f"; {fmt.count(len(found.requests))} shown" if len(found.requests) < found.total else ""
    rows = [line((fmt.many(found.total, "request"), Tone.STRONG), f": {counts}" if counts else "", shown)]
    if found.unavailable_reason is not None:
        rows.append(
            line(("what only the scheduler knows is missing: " + fmt.clean(found.unavailable_reason), Tone.WARN))
        )
    if not found.requests:
        return rows
    columns = [_columns(row) for row in found.requests]
    widths = [max(len(head), *(len(cells[at]) for cells in columns)) for at, head in enumerate(_HEADS)]
    longest = max(len(fmt.clean(row.id)) for row in found.requests)
    room = max(_NARROWEST_ID, min(longest, width - sum(widths) - 2 * len(widths)))
    rows.append(line((_joined("id".ljust(room), _HEADS, widths), Tone.FAINT)))
    for row, cells in zip(found.requests, columns, strict=True):
        shown_id = plain_text(fit(line(fmt.clean(row.id)), room))
        rows.append(line(_joined(shown_id, cells, widths)))
        if row.trouble is not None:
            rows.append(line("  ▲ ", (fmt.clean(row.trouble), Tone.WARN)))
    return rows


_HEADS = ("state", "age", "waited", "prompt", "cached", "out", "of", "blocks", "prio", "preempted", "accepted")


def _columns(row: RequestRow) -> tuple[str, ...]:
    return (
        fmt.clean(row.state),
        fmt.span(row.age_s),
        fmt.span(row.waited_s),
        fmt.count(row.prompt_tokens),
        fmt.count(row.cached_tokens),
        fmt.count(row.generated_tokens),
        fmt.count(row.max_tokens),
        fmt.count(row.blocks),
        fmt.count(row.priority),
        fmt.count(row.preemptions),
        fmt.percent(row.accepted / row.drafted if row.drafted and row.accepted is not None else None),
    )


def _joined(first: str, cells: tuple[str, ...], widths: list[int]) -> str:
    """Numbers to the right, the state to the left."""
    state, *numbers = (
        cell.ljust(width) if at == 0 else cell.rjust(width)
        for at, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )
    return "  ".join((first, state, *numbers))


def abort_consequence(row: RequestRow) -> tuple[str, str]:
    out = fmt.many(row.generated_tokens, "token") + (
        f" of at most {fmt.count(row.max_tokens)}" if row.max_tokens is not None else ""
    )
    trouble = f" {fmt.clean(row.trouble)}." if row.trouble is not None else ""
    return (
        f"End the request {fmt.clean(row.id)} ({row.state}, {fmt.span(row.age_s)} old, {out}).{trouble}",
        "Its client gets an error, also where part of the answer was sent; the request cannot be brought back.",
    )
