"""The queue screen as lines: what is wrong, the requests, and all about one of them.

Pure like the overview. The list pages rather than scrolls, so that moving the cursor repaints two rows, and only rows
in sight are made into text: 2,000 requests cost what 20 do.
"""

from __future__ import annotations

from collections.abc import Sequence

from console import format as fmt
from console.consequence import METHOD_ABORT
from console.frame import Moment, opening, sized
from console.labels import label
from console.lines import BLANK, Line, Tone, clip, faded, line, spread
from console.model import State, is_stale, may
from console.polled import Polled, is_old, no_answer, standing
from console.queue_desk import Desk, View, chosen, is_filtered, position
from console.queue_table import heading_row, request_row
from console.request_panel import about_lines, ended_words, request_lines
from console.switch_panels import wrapped
from console.words import ROLE_NEEDED, trouble
from engine_host.protocol.methods import METHODS, RequestList
from engine_host.protocol.snapshot import Snapshot

ABOUT = 2
"""Rows below the list about the chosen request."""

ALARM_ROWS = 2
"""Rows about requests that are in trouble; each is told of in full once the cursor is on it."""

MIN_LIST = 3
"""Rows of the list on however small a terminal."""

_MEANS = {
    "hung": "Requests cannot finish by themselves.",
    "stuck": "Not idle: nothing will start them by itself.",
}
_REMEDY = "A ends one request, R restarts the engine."


def queue_page(
    live: State, desk: Desk, polled: Polled[RequestList], moment: Moment, width: int, height: int
) -> list[Line]:
    top = opening(live, moment, width, height, keeps=8, without_engine="so requests wait at the gate or are refused")
    if top.snapshot is None:
        return sized([*top.rows, *_at_the_gate(top.state)], width, height)
    state, now, snapshot = top.state, top.now, top.snapshot
    rows = [*top.rows, *_alarms(state, snapshot, desk, width)]
    if desk.view is View.DETAIL:
        body = [BLANK, *_detail(desk, polled, snapshot, now, width)]
    else:
        body = [*_list(desk, polled, snapshot, now, width, height - len(rows))]
    if is_stale(state, now):
        body = faded(body)
    elif is_old(polled, state, now):
        body = [*body[:2], *faded(body[2:])]
    return sized([*rows, *body], width, height)


def _at_the_gate(state: State) -> list[Line]:
    """While no engine runs, which has all the others."""
    held = state.snapshot.queue.held if state.snapshot is not None else None
    return [] if held is None else [line(f"  held at the gate {fmt.count(held)}")]


def _alarms(state: State, snapshot: Snapshot, desk: Desk, width: int) -> list[Line]:
    """What is wrong with the engine, and with which requests, before any list."""
    rows: list[Line] = []
    if what := trouble(snapshot):
        rows.append(line(("  ", Tone.PLAIN), (f" ▲ {fmt.clean(what)} ", Tone.BAD)))
        risk = METHODS[METHOD_ABORT].risk
        remedy = _REMEDY if may(state, risk) else f"To act needs {ROLE_NEEDED[risk]}."
        means = _MEANS.get(snapshot.queue.stalled_reason or "", "")
        rows += [line("    ", part) for part in wrapped(f"{means} {remedy}".strip(), width - 5)]
    listed = desk.listed.requests if desk.listed is not None else []
    ill = [row for row in listed if row.trouble]
    if not ill and snapshot.queue.stalled and snapshot.queue.stalled_text:
        rows += [line("    ", part) for part in wrapped(snapshot.queue.stalled_text, width - 5)[:ALARM_ROWS]]
    if ill:
        others = f" (and {len(ill) - 1} more, marked ▲)" if len(ill) > 1 else ""
        told = f"{clip(fmt.clean(ill[0].id), 24)}  {fmt.clean(ill[0].trouble or '')}{others}"
        parts = wrapped(told, width - 5)[:ALARM_ROWS]
        rows += [line(("  ▲ " if i == 0 else "    ", Tone.WARN), part) for i, part in enumerate(parts)]
    return rows


def _list(
    desk: Desk, polled: Polled[RequestList], snapshot: Snapshot, now: float, width: int, height: int
) -> list[Line]:
    found = desk.listed
    fresh = standing(polled, "the list", now)
    if found is None:
        return [spread(line(label("Requests")), fresh, width), *no_answer(polled, width)]
    notes = _notes(desk, found, width)
    room = max(MIN_LIST, height - 2 - len(notes) - ABOUT)
    at = position(desk)
    first = at // room * room
    shown = desk.rows[first : first + room]
    where = fresh or _where(desk, first, len(shown))
    rows = [spread(line(label("Requests"), *_counts(found, snapshot)), where, width), *notes]
    if not desk.rows:
        none = "none matches" if is_filtered(desk) else "none: nothing runs, nothing waits"
        return [*rows, BLANK, line((f"  {none}", Tone.FAINT))]
    rows.append(heading_row(desk.order, width))
    rows += [request_row(row, row.id == desk.chosen, width) for row in shown]
    rows += [BLANK] * (min(room, len(desk.rows)) - len(shown))
    return [*rows, *about_lines(chosen(desk), width)[:ABOUT]]


def _counts(found: RequestList, snapshot: Snapshot) -> list[tuple[str, Tone]]:
    pieces: list[tuple[str, Tone]] = []
    for name, count in list(found.by_state.items())[:6]:
        tone = Tone.STRONG if count else Tone.FAINT
        pieces.append((f"{fmt.clean(name)[:12]} {fmt.count(count)}   ", tone))
    if snapshot.queue.held:
        pieces.append((f"held at the gate {fmt.count(snapshot.queue.held)}", Tone.WARN))
    return pieces


def _where(desk: Desk, first: int, shown: int) -> Line:
    total = desk.listed.total if desk.listed is not None else 0
    # Who filters wants to know of how many; otherwise the host's own total is what is there.
    of = len(desk.rows) if is_filtered(desk) or not desk.is_cut else total
    if shown >= of:
        # The one that has ended under the cursor is in sight, but there no more.
        return line((fmt.many(of - (desk.gone is not None), "request"), Tone.FAINT))
    return line((f"{fmt.count(first + 1)} to {fmt.count(first + shown)} of {fmt.count(of)}", Tone.NOTICE))


def _notes(desk: Desk, found: RequestList, width: int) -> list[Line]:
    notes: list[Line] = []
    total = fmt.count(found.total)
    if is_filtered(desk):
        wanted = [f'"{fmt.clean(desk.match)}" in the id'] if desk.match else []
        wanted += [f"state {desk.state}"] if desk.state else []
        notes.append(line(("  only ", Tone.NOTICE), (" and ".join(wanted), Tone.STRONG), (f"  of {total}", Tone.FAINT)))
    elif desk.is_cut:
        told = f"  the first {fmt.count(len(found.requests))} of {total} by {desk.order}; / and f find others"
        notes.append(line((told, Tone.NOTICE)))
    if found.unavailable_reason is not None:
        parts = wrapped(f"{fmt.DASH} is what only the scheduler knows: {found.unavailable_reason}", width - 3)
        notes += [line("  ", (part, Tone.NOTICE)) for part in parts[:2]]
    return notes


def _detail(desk: Desk, polled: Polled[RequestList], snapshot: Snapshot, now: float, width: int) -> Sequence[Line]:
    row = chosen(desk)
    fresh = standing(polled, "this", now)
    heading = spread(line(label("Request")), fresh, width)
    if row is None:
        return [heading]
    ended = ended_words(row)
    told = [line((f" ▲ {ended} ", Tone.BAD))] if ended else []
    return [heading, *told, *request_lines(row, snapshot, width)]
