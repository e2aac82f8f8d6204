"""What `dial` and `requests` say to a person, as lines. Pure functions of the wire types.

Ids are their clients' words: control characters are taken out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from console import format as fmt
from console.lines import Line, Tone, fit, line, plain_text
from engine_host.protocol.methods import REQUEST_STATES, DialSheet, RequestList, RequestRow
from engine_host.protocol.snapshot import Dial

_ID_CELLS = 28
"""Of an id, that a terminal should have room for: vLLM's own begin with what kind they are, then 32 random digits."""
_ID_LEAST = 12


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
    by_state = [(state, found.by_state.get(state)) for state in REQUEST_STATES]
    counts = ", ".join(f"{fmt.count(count)} {state}" for state, count in by_state if count)
    shown = f"; {fmt.count(len(found.requests))} shown" if len(found.requests) < found.total else ""
    rows = [line((fmt.many(found.total, "request"), Tone.STRONG), f": {counts}" if counts else "", shown)]
    if found.unavailable_reason is not None:
        rows.append(
            line(("what only the scheduler knows is missing: " + fmt.clean(found.unavailable_reason), Tone.WARN))
        )
    if not found.requests:
        return rows
    longest = max(len(fmt.clean(row.id)) for row in found.requests)
    columns, room = _fitting(found.requests, width, longest)
    heads = [plain_text(fit(line("id"), room)), *(column[0] for column in columns)]
    rows.append(line(("  ".join(heads), Tone.FAINT)))
    for at, row in enumerate(found.requests, start=1):
        cells = [plain_text(fit(line(fmt.clean(row.id)), room)), *(column[at] for column in columns)]
        rows.append(line("  ".join(cells)))
        if row.trouble is not None:
            rows.append(line("  ▲ ", (fmt.clean(row.trouble), Tone.WARN)))
    return rows


_COLUMNS: dict[str, Callable[[RequestRow], str]] = {
    "state": lambda row: fmt.clean(row.state),
    "age": lambda row: fmt.span(row.age_s),
    "waited": lambda row: fmt.span(row.waited_s),
    "prompt": lambda row: fmt.count(row.prompt_tokens),
    "cached": lambda row: fmt.count(row.cached_tokens),
    "out": lambda row: fmt.count(row.generated_tokens),
    "of": lambda row: fmt.count(row.max_tokens),
    "blocks": lambda row: fmt.count(row.blocks),
    "prio": lambda row: fmt.count(row.priority),
    "preempted": lambda row: fmt.count(row.preemptions),
    "accepted": lambda row: fmt.percent(
        row.accepted / row.drafted if row.drafted and row.accepted is not None else None
    ),
}
_GIVE_WAY = ("prio", "accepted", "of", "cached", "preempted", "waited")
"""Columns left out on a narrow terminal, these first: an id that cannot be told from another is worth nothing."""


def _fitting(requests: Sequence[RequestRow], width: int, longest: int) -> tuple[list[list[str]], int]:
    """The columns that there is room for, each with its heading first, padded; and the cells left for the ids."""
    columns = {head: [head, *map(cell_of, requests)] for head, cell_of in _COLUMNS.items()}
    wide = {head: max(map(len, column)) for head, column in columns.items()}
    for head in _GIVE_WAY:
        if width - sum(wide.values()) - 2 * len(wide) >= min(longest, _ID_CELLS):
            break
        del wide[head]
    # Numbers to the right, the state to the left.
    padded = [
        [cell.ljust(cells) if head == "state" else cell.rjust(cells) for cell in columns[head]]
        for head, cells in wide.items()
    ]
    return padded, max(_ID_LEAST, min(longest, width - sum(wide.values()) - 2 * len(wide)))
