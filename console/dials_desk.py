"""What the dials screen holds besides the host's state: the dial the cursor is on, and the change that is being made.

Immutable, changed only by the functions here. A change remembers the value that it was begun from: the host is told
that one as expected, and when it moves meanwhile the change is given up rather than made to something else.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from console import format as fmt
from console.dial_effect import last_move
from console.model import DialMove, State
from engine_host.protocol.methods import DialsSet
from engine_host.protocol.snapshot import Dial

SPECULATIVE_TOKENS = "speculative_tokens"

ORDER = ("max_active_seqs", "max_scheduled_tokens", SPECULATIVE_TOKENS)
"""Of the dials on the page; any others follow."""

LASTS: tuple[float | None, ...] = (None, 60.0, 600.0, 3_600.0, 28_800.0)
"""How long a change may be made for, in the order in which a key goes through them; None: it stays."""

REASON_CHARS = 300
"""Of a reason: what a recommendation rests on is longer than an audit log wants it."""

STEPS = 32
"""About so many steps lead from one end of a range to the other; of a short one every value is a step."""


@dataclass(frozen=True, slots=True)
class Pending:
    """A change that nobody has sent yet."""

    dial: str
    seen: int
    """The value in force when it was begun."""
    value: int
    for_s: float | None = None
    reason: str = ""
    """Of its own; empty: it was made by hand."""
    is_reset: bool = False
    """Back to what the engine was started with, and nobody's any more."""


@dataclass(frozen=True, slots=True)
class Desk:
    chosen: str = ""
    """Name of the dial the cursor is on."""
    pending: Pending | None = None
    sending: Pending | None = None
    """Asked of the host, and not answered yet."""
    is_typing: bool = False
    typing_fault: str = ""
    failure: str = ""
    """What became, in words, of the last change, when it was not made."""
    done: str = ""
    """What the host said of the last change that was made; shown while the dial stands there."""
    made: Pending | None = None
    """That change."""
    is_made_seen: bool = False
    """The host's state has shown it: a state that does not may be older, or the dial has moved on."""
    boot_id: str = ""
    """Of the host that all this is about."""


def dials(state: State) -> dict[str, Dial]:
    """In the order of the page."""
    found = state.snapshot.dials if state.snapshot is not None else {}
    known = [name for name in ORDER if name in found]
    return {name: found[name] for name in [*known, *sorted(found.keys() - set(known))]}


def chosen(desk: Desk, state: State) -> str | None:
    found = dials(state)
    return desk.chosen if desk.chosen in found else next(iter(found), None)


def followed(desk: Desk, state: State) -> Desk:
    """The desk after a look at the host's state: what is being made of a dial that has moved meanwhile is given up,
    and what was made of one that has moved on is told no longer."""
    if state.snapshot is None:
        return desk
    boot_id = state.snapshot.host.boot_id
    if boot_id != desk.boot_id:
        if desk.boot_id:
            desk = replace(desk, failure="", done="", made=None, is_made_seen=False)
        desk = replace(desk, boot_id=boot_id)
    desk = _told_while_it_stands(desk, state)
    pending = desk.pending
    if pending is None:
        return desk
    dial = dials(state).get(pending.dial)
    if dial is None:
        gone = f"{fmt.clean(pending.dial)}: there is no such dial now; the change was not sent."
        return replace(desk, pending=None, failure=gone)
    if dial.value == pending.seen:
        return desk
    by = f" by {fmt.clean(dial.who)}" if dial.who is not None else ""
    moved_on = f"{fmt.clean(pending.dial)} was set to {fmt.count(dial.value)}{by} meanwhile; "
    return replace(desk, pending=None, failure=moved_on + "your change was not sent.")


def _told_while_it_stands(desk: Desk, state: State) -> Desk:
    if desk.made is None:
        return desk
    dial = dials(state).get(desk.made.dial)
    if dial is not None and dial.value == desk.made.value:
        return desk if desk.is_made_seen else replace(desk, is_made_seen=True)
    return replace(desk, done="", made=None, is_made_seen=False) if desk.is_made_seen else desk


def moved(desk: Desk, state: State, steps: int) -> Desk:
    names = list(dials(state))
    if not names or desk.pending is not None:
        return desk
    at = names.index(chosen(desk, state) or names[0])
    return replace(desk, chosen=names[min(len(names) - 1, max(0, at + steps))])


def nudged(desk: Desk, state: State, direction: int) -> Desk:
    """One step up (1) or down (-1) from what is being made of it, else from what it is."""
    name = chosen(desk, state)
    if name is None:
        return desk
    dial = dials(state)[name]
    now = desk.pending.value if desk.pending is not None else dial.value
    return proposed(desk, state, name, stepped(dial, now, direction))


def stepped(dial: Dial, value: int, direction: int) -> int:
    """The next multiple of the range's step, within the range."""
    step = step_of(dial)
    following = (value // step + 1) * step if direction > 0 else (-(-value // step) - 1) * step
    return min(max(dial.low, dial.high), max(dial.low, following))


def step_of(dial: Dial) -> int:
    """A power of two, 1 for a short range."""
    return max(1, 1 << max(0, ((dial.high - dial.low) // STEPS).bit_length() - 1)) if dial.high > dial.low else 1


def typed(desk: Desk, state: State, text: str) -> Desk:
    """What was typed as the chosen dial's value; a fault is said and the typing goes on."""
    name = chosen(desk, state)
    if name is None:
        return replace(desk, is_typing=False)
    dial = dials(state)[name]
    digits = text.strip().replace(",", "")
    if not digits.isascii() or not digits.isdigit() or len(digits) > 12 or not dial.low <= int(digits) <= dial.high:
        return replace(desk, typing_fault=f"a whole number from {dial.low} to {dial.high}")
    return proposed(replace(desk, is_typing=False, typing_fault=""), state, name, int(digits))


def typing(desk: Desk, is_typing: bool) -> Desk:
    return replace(desk, is_typing=is_typing, typing_fault="")


def proposed(desk: Desk, state: State, name: str, value: int, reason: str = "", for_s: float | None = None) -> Desk:
    """A change to be agreed to; none when the dial stands there already."""
    dial = dials(state).get(name)
    if dial is None:
        return desk
    same = desk.pending if desk.pending is not None and desk.pending.dial == name else None
    seen = same.seen if same is not None else dial.value
    if value == seen:
        return replace(desk, chosen=name, pending=None)
    lasts = same.for_s if same is not None and not reason else for_s
    pending = Pending(name, seen, value, lasts, reason)
    return replace(desk, chosen=name, pending=pending, failure="", done="")


def reset(desk: Desk, state: State) -> Desk:
    name = chosen(desk, state)
    if name is None:
        return desk
    dial = dials(state)[name]
    if dial.value == dial.start and dial.who is None:
        return replace(desk, failure=f"{fmt.clean(name)} stands where the engine was started.")
    return replace(desk, pending=Pending(name, dial.value, dial.start, is_reset=True), failure="", done="")


def reverting(desk: Desk, state: State, reason: str) -> Desk:
    """Back to what it was before the last move."""
    move = revertable(desk, state)
    return desk if move is None else proposed(desk, state, move.dial, move.before, reason)


def revertable(desk: Desk, state: State) -> DialMove | None:
    return last_move(state) if desk.pending is None else None


def lasting_next(desk: Desk) -> Desk:
    """The next span that the change is made for."""
    if desk.pending is None or desk.pending.is_reset:
        return desk
    known = desk.pending.for_s in LASTS
    following = LASTS[(LASTS.index(desk.pending.for_s) + 1) % len(LASTS)] if known else None
    return replace(desk, pending=replace(desk.pending, for_s=following))


def dropped(desk: Desk) -> Desk:
    return replace(desk, pending=None, failure="", done="")


def sending(desk: Desk) -> Desk:
    return replace(desk, sending=desk.pending, pending=None, failure="", done="")


def answered(desk: Desk, outcome: str, *, is_done: bool) -> Desk:
    made = desk.sending if is_done else None
    done, failure = (outcome, "") if is_done else ("", outcome)
    return replace(desk, sending=None, done=done, failure=failure, made=made, is_made_seen=False)


def order(pending: Pending, reason: str, key: str) -> DialsSet:
    """What the host is asked for: this, and only if the dial still stands where it was seen."""
    return DialsSet(
        values={pending.dial: None if pending.is_reset else pending.value},
        for_s=pending.for_s,
        expected={pending.dial: pending.seen},
        reason=(pending.reason or reason)[:REASON_CHARS],
        idempotency_key=key,
    )


def place(desk: Desk, state: State) -> str:
    """As the action table names it: what can be done here."""
    if not dials(state):
        return "dials.none"
    if desk.is_typing:
        return "dials.typing"
    if desk.sending is not None:
        return "dials.sending"
    if desk.pending is not None:
        return "dials.pending"
    return "dials.moved" if revertable(desk, state) is not None else "dials.still"
