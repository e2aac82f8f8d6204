"""What a screen holds on which a value is changed: the row the cursor is on, the change being made, and its outcome.

Immutable, changed only by functions: those here are the same for every such screen, what a row can be is the screen's
own. A change remembers the value that it was begun from: the host is told that one as expected, and when it moves
meanwhile the change is given up rather than made to something else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Generic, Protocol, TypeVar

from console import format as fmt

LASTS: tuple[float | None, ...] = (None, 60.0, 600.0, 3_600.0, 28_800.0)
"""How long a change may be made for, in the order in which a key goes through them; None: it stays."""

REASON_CHARS = 300
"""Of a reason: what a recommendation rests on is longer than an audit log wants it."""

V = TypeVar("V")
SeenV = TypeVar("SeenV", covariant=True)


class Row(Protocol[SeenV]):
    """What can be changed, as the host tells of it."""

    @property
    def value(self) -> SeenV:
        """In force."""

    @property
    def who(self) -> str | None:
        """Who set it; None: nobody did."""


@dataclass(frozen=True, slots=True)
class Pending(Generic[V]):
    """A change that nobody has sent yet."""

    name: str
    seen: V
    """The value in force when it was begun."""
    value: V
    for_s: float | None = None
    reason: str = ""
    """Of its own; empty: nobody gave one."""
    is_reset: bool = False
    """Back to where it stands by itself, and nobody's any more."""


@dataclass(frozen=True, slots=True)
class Failed(Generic[V]):
    """A change that was not made, of a row that had been moved or may have been."""

    text: str
    name: str
    seen: V
    """The value that the change was begun from."""
    found: Row[V] | None = None
    """The row once it was seen to stand elsewhere."""


@dataclass(frozen=True, slots=True)
class Desk(Generic[V]):
    chosen: str = ""
    """Name of the row the cursor is on."""
    pending: Pending[V] | None = None
    sending: Pending[V] | None = None
    """Asked of the host, and not answered yet."""
    is_typing: bool = False
    is_typing_reason: bool = False
    """What is typed is not a value but why the change is made."""
    typing_fault: str = ""
    failure: str = ""
    """What became, in words, of the last change, when it was not made."""
    failed: Failed[V] | None = None
    """The same, where it is of a row's value: it is told while the row stands there."""
    done: str = ""
    """What the host said of the last change that was made; shown while the row stands there."""
    made: tuple[str, V] | None = None
    """What that change has put in force."""
    is_made_seen: bool = False
    """The host's word has shown it: one that does not may be older, or the row has moved on."""


D = TypeVar("D", bound=Desk[Any])


class Stage(StrEnum):
    """How far a change is."""

    NONE = "none"
    TYPING = "typing"
    SENDING = "sending"
    PENDING = "pending"


def stage(desk: Desk[Any]) -> Stage:
    if desk.is_typing:
        return Stage.TYPING
    if desk.sending is not None:
        return Stage.SENDING
    return Stage.PENDING if desk.pending is not None else Stage.NONE


def at_cursor(desk: Desk[Any], rows: Mapping[str, object]) -> str | None:
    """The first row until one is chosen, and when the chosen one is gone."""
    return desk.chosen if desk.chosen in rows else next(iter(rows), None)


def moved(desk: D, rows: Mapping[str, object], steps: int) -> D:
    """The cursor stays where it is while there is a question about a row."""
    names = list(rows)
    if not names or desk.pending is not None:
        return desk
    at = names.index(at_cursor(desk, rows) or names[0])
    return replace(desk, chosen=names[min(len(names) - 1, max(0, at + steps))])


def followed(desk: D, rows: Mapping[str, Row[V]], noun: str, shown: Callable[[V], str]) -> D:
    """The desk after a newer word of the host's: what is being made of a row that has moved meanwhile is given up, and
    what was made of one that has moved on is told no longer.

    `noun`: what a row is; `shown` writes a value.
    """
    desk = _failed_while_it_stands(_told_while_it_stands(desk, rows), rows)
    pending = desk.pending
    if pending is None:
        return desk
    name, row = fmt.clean(pending.name), rows.get(pending.name)
    if row is None:
        return replace(desk, pending=None, failure=f"{name}: there is no such {noun} now; the change was not sent.")
    if row.value == pending.seen:
        return desk
    by = f" by {fmt.clean(row.who)}" if row.who is not None else ""
    fact = f"{name} was set to {shown(row.value)}{by} meanwhile"
    failure = f"{fact}; your change was not sent."
    return replace(desk, pending=None, failure=failure, failed=Failed(failure, pending.name, pending.seen, row))


def _told_while_it_stands(desk: D, rows: Mapping[str, Row[Any]]) -> D:
    if desk.made is None:
        return desk
    name, value = desk.made
    row = rows.get(name)
    if row is not None and row.value == value:
        return desk if desk.is_made_seen else replace(desk, is_made_seen=True)
    return replace(desk, done="", made=None, is_made_seen=False) if desk.is_made_seen else desk


def _failed_while_it_stands(desk: D, rows: Mapping[str, Row[Any]]) -> D:
    """A refusal is of the value that stood in the way; when that is gone it says nothing any more."""
    failed = desk.failed
    if failed is None or failed.text != desk.failure or (row := rows.get(failed.name)) is None:
        return desk
    if failed.found is None:
        return desk if row.value == failed.seen else replace(desk, failed=replace(failed, found=row))
    return desk if row.value == failed.found.value else replace(desk, failure="", failed=None)


def proposed(
    desk: D,
    rows: Mapping[str, Row[V]],
    name: str,
    value: V,
    reason: str = "",
    for_s: float | None = None,
    *,
    also_same: bool = False,
) -> D:
    """A change to be agreed to; unless `also_same` none when the row stands there already. One that is being made of
    that row goes on from where it was begun, and for as long as it was to be."""
    row = rows.get(name)
    if row is None:
        return desk
    same = desk.pending if desk.pending is not None and desk.pending.name == name else None
    seen = same.seen if same is not None else row.value
    # One and True are equal, and not the same limit.
    if value == seen and isinstance(value, bool) == isinstance(seen, bool) and not also_same:
        return replace(desk, chosen=name, pending=None)
    return asked(replace(desk, chosen=name), Pending(name, seen, value, same.for_s if same else for_s, reason))


def asked(desk: D, pending: Pending[Any]) -> D:
    """With a question about this change."""
    return replace(desk, pending=pending, failure="", done="")


def lasting_next(desk: D) -> D:
    """The next span that the change is made for."""
    if desk.pending is None or desk.pending.is_reset:
        return desk
    at = LASTS.index(desk.pending.for_s) if desk.pending.for_s in LASTS else -1
    return replace(desk, pending=replace(desk.pending, for_s=LASTS[(at + 1) % len(LASTS)]))


def typing(desk: D, is_typing: bool, *, is_reason: bool = False) -> D:
    return replace(desk, is_typing=is_typing, is_typing_reason=is_typing and is_reason, typing_fault="")


def reasoned(desk: D, text: str) -> D:
    """What was typed is why; another operator may have ended the change meanwhile."""
    pending = desk.pending and replace(desk.pending, reason=text.strip()[:REASON_CHARS])
    return replace(typing(desk, False), pending=pending)


def dropped(desk: D) -> D:
    return replace(desk, pending=None, failure="", done="")


def sending(desk: D) -> D:
    return replace(desk, sending=desk.pending, pending=None, failure="", done="")


def done(desk: D, outcome: str, made: tuple[str, Any] | None, *, is_seen: bool = False) -> D:
    """Answered: it is made. `made`: the row and its value now; `is_seen`: the host's word shows it already."""
    return replace(desk, sending=None, done=outcome, failure="", made=made, is_made_seen=is_seen)


def refused(desk: D, why: str) -> D:
    """Answered, or not: it is not known to be made."""
    failed = Failed(why, desk.sending.name, desk.sending.seen) if desk.sending is not None else None
    return replace(desk, sending=None, done="", failure=why, failed=failed, made=None, is_made_seen=False)
