"""What the queue screen holds besides the host's state: the list, the place in it, how it is sorted and filtered.

Immutable, changed only by the functions here. Sorting and filtering are done here as well as by the host: a key works
at once, also on a frozen page, and the host is asked in the same order so that a list cut short has the right rows.
The cursor stands on a request, not on a row; one that ends under it stays in sight, as it was last, until the cursor
moves on, so that no key can mean another one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum

import msgspec

from engine_host.protocol.methods import REQUEST_STATES, RequestList, RequestOrder, RequestRow, RequestsList

FIRST = 500
"""Rows asked for at first, far more than a screenful: 150 kB a second, on a machine of its own a trifle."""

MOST = 2_000
"""What the host gives at most; asked for once the cursor has come to the end of the first ones, until it is back
at their beginning."""

ENDED = "ended"
"""Stands in the place of a state: the host has it no more."""

UNLISTED = "unlisted"
"""The list was cut short, and it is no longer among those: it may have ended, or others come before it."""

STATES = ("", *REQUEST_STATES)
"""To filter by, in the order in which a key goes through them; the first is all."""

ORDERS = tuple(RequestOrder)


class View(StrEnum):
    LIST = "list"
    DETAIL = "detail"


@dataclass(frozen=True, slots=True)
class Desk:
    view: View = View.LIST
    order: RequestOrder = RequestOrder.AGE
    state: str = ""
    match: str = ""
    is_typing: bool = False
    """What to match is being typed."""
    limit: int = FIRST
    listed: RequestList | None = None
    is_cut: bool = False
    """The host has more than it told, or was asked for some only."""
    rows: tuple[RequestRow, ...] = ()
    """As they are shown: sorted and filtered, with the one that ended under the cursor."""
    chosen: str = ""
    """Id of the request the cursor is on."""
    gone: RequestRow | None = None
    """The chosen one as it was last, once the host lists it no more."""


_SIZES: dict[RequestOrder, Callable[[RequestRow], float | None]] = {
    RequestOrder.AGE: lambda row: row.age_s,
    RequestOrder.WAITED: lambda row: row.waited_s,
    RequestOrder.BLOCKS: lambda row: row.blocks,
    RequestOrder.PROMPT: lambda row: row.prompt_tokens,
    RequestOrder.GENERATED: lambda row: row.generated_tokens,
    RequestOrder.PREEMPTIONS: lambda row: row.preemptions,
}


def question(desk: Desk) -> RequestsList:
    """What to ask the host for. All of them while that is not too many, so that one that is missing has ended."""
    if not desk.is_cut:
        return RequestsList(order=desk.order, limit=desk.limit)
    return RequestsList(order=desk.order, limit=desk.limit, state=desk.state or None, match=desk.match)


def listed(desk: Desk, found: RequestList) -> Desk:
    """The host's list has come; the cursor stays on its request, at first on the first one."""
    ids = {row.id for row in found.requests}
    before = desk.gone or _row(desk)
    is_cut = found.total > len(found.requests)
    gone = None
    if before is not None and before.id == desk.chosen and desk.chosen not in ids:
        # What was asked for by state may have left that state only.
        gone = msgspec.structs.replace(before, state=UNLISTED if is_cut else ENDED)
    desk = _shown(replace(desk, listed=found, is_cut=is_cut, gone=gone))
    return desk if desk.chosen or not desk.rows else replace(desk, chosen=desk.rows[0].id)


def forgotten(desk: Desk) -> Desk:
    """Another host: none of these requests is its own. How they are sorted and filtered stays."""
    return replace(Desk(), order=desk.order, state=desk.state, match=desk.match, is_typing=desk.is_typing)


def chosen(desk: Desk) -> RequestRow | None:
    """The one under the cursor, with its last figures if it is gone."""
    return desk.gone or _row(desk)


def abortable(desk: Desk) -> RequestRow | None:
    return None if desk.gone is not None else _row(desk)


def position(desk: Desk) -> int:
    """Of the cursor among the rows shown; 0 when its request is not among them."""
    return next((index for index, row in enumerate(desk.rows) if row.id == desk.chosen), 0)


def moved(desk: Desk, steps: int) -> Desk:
    if not desk.rows:
        return desk
    at = min(len(desk.rows) - 1, max(0, position(desk) + steps))
    is_at_the_end = desk.is_cut and at == len(desk.rows) - 1
    limit = MOST if is_at_the_end else FIRST if at == 0 else desk.limit
    found = replace(desk, chosen=desk.rows[at].id, limit=limit)
    if desk.gone is not None and found.chosen != desk.chosen:
        found = _shown(replace(found, gone=None))
    return found


def sorted_by_next(desk: Desk) -> Desk:
    return _shown(replace(desk, order=ORDERS[(ORDERS.index(desk.order) + 1) % len(ORDERS)]))


def filtered_by_next_state(desk: Desk) -> Desk:
    state = STATES[(STATES.index(desk.state) + 1) % len(STATES)]
    row = chosen(desk)
    keeps = row is not None and state in {"", row.state}
    return _on_a_row(_shown(replace(desk, state=state, chosen=desk.chosen if keeps else "", gone=None)))


def matching(desk: Desk, text: str) -> Desk:
    if desk.gone is not None and text not in desk.gone.id:
        desk = replace(desk, gone=None)
    return _on_a_row(_shown(replace(desk, match=text)))


def typing(desk: Desk, is_typing: bool) -> Desk:
    return replace(desk, is_typing=is_typing)


def is_filtered(desk: Desk) -> bool:
    return bool(desk.state or desk.match)


def looking_into(desk: Desk) -> Desk:
    return replace(desk, view=View.DETAIL) if chosen(desk) is not None else desk


def back(desk: Desk) -> Desk:
    """One step: out of the detail, else out of the filter."""
    if desk.view is View.DETAIL:
        return replace(desk, view=View.LIST)
    return _on_a_row(_shown(replace(desk, state="", match="")))


def place(desk: Desk) -> str:
    """As the action table names it: what can be done here."""
    if desk.is_typing:
        return "queue.typing"
    if desk.view is View.DETAIL:
        return "queue.detail" if abortable(desk) is not None else "queue.detail_gone"
    if chosen(desk) is None:
        return "queue.none_match" if is_filtered(desk) else "queue.none"
    kind = "gone" if desk.gone is not None else "one"
    return f"queue.{kind}_filtered" if is_filtered(desk) else f"queue.{kind}"


def _row(desk: Desk) -> RequestRow | None:
    return next((row for row in desk.rows if row.id == desk.chosen), None)


def _shown(desk: Desk) -> Desk:
    """Sorted, largest first; of equal ones the older one first, which keeps its place as others come and go."""
    found = [row for row in desk.listed.requests if _is_wanted(row, desk)] if desk.listed is not None else []
    if desk.gone is not None:
        found.append(desk.gone)
    size = _SIZES[desk.order]

    def key(row: RequestRow) -> tuple[float, float, str]:
        value = size(row)
        return (float("inf") if value is None else -value, -row.age_s, row.id)

    return replace(desk, rows=tuple(sorted(found, key=key)))


def _is_wanted(row: RequestRow, desk: Desk) -> bool:
    # The one under the cursor stays when it changes its state: it has not ended.
    return desk.match in row.id and (not desk.state or row.state == desk.state or row.id == desk.chosen)


def _on_a_row(desk: Desk) -> Desk:
    """After a change of the filter: on what it was, else on the first row."""
    if _row(desk) is not None or not desk.rows:
        return desk
    return replace(desk, chosen=desk.rows[0].id, gone=None)
