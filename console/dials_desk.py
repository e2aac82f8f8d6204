"""What the dials screen holds besides the host's state, and how it changes: a change is made as `console.change_desk`
has it, of the dials in the snapshot. What a move did can be taken back."""

from __future__ import annotations

from dataclasses import dataclass, replace

from console import change_desk
from console import format as fmt
from console.change_desk import REASON_CHARS, Pending, Stage, asked, at_cursor, typing
from console.dial_effect import last_move
from console.model import DialMove, State
from engine_host.protocol.methods import DialsSet
from engine_host.protocol.snapshot import Dial

SPECULATIVE_TOKENS = "speculative_tokens"

ORDER = ("max_active_seqs", "max_scheduled_tokens", SPECULATIVE_TOKENS)
"""Of the dials on the page; any others follow."""

STEPS = 32
"""About so many steps lead from one end of a range to the other; of a short one every value is a step."""


@dataclass(frozen=True, slots=True)
class Desk(change_desk.Desk[int]):
    boot_id: str = ""
    """Of the host that all this is about."""


def dials(state: State) -> dict[str, Dial]:
    """In the order of the page."""
    found = state.snapshot.dials if state.snapshot is not None else {}
    known = [name for name in ORDER if name in found]
    return {name: found[name] for name in [*known, *sorted(found.keys() - set(known))]}


def chosen(desk: Desk, state: State) -> str | None:
    return at_cursor(desk, dials(state))


def followed(desk: Desk, state: State) -> Desk:
    """The desk after a look at the host's state."""
    if state.snapshot is None:
        return desk
    boot_id = state.snapshot.host.boot_id
    if boot_id != desk.boot_id:
        if desk.boot_id:
            desk = replace(desk, failure="", done="", made=None, is_made_seen=False)
        desk = replace(desk, boot_id=boot_id)
    return change_desk.followed(desk, dials(state), "dial", fmt.count)


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
        return typing(desk, False)
    dial = dials(state)[name]
    digits = text.strip().replace(",", "")
    if not digits.isascii() or not digits.isdigit() or len(digits) > 12 or not dial.low <= int(digits) <= dial.high:
        return replace(desk, typing_fault=f"a whole number from {typing_hint(dial)}")
    return proposed(typing(desk, False), state, name, int(digits))


def typing_hint(dial: Dial) -> str:
    return f"{dial.low} to {dial.high}"


def proposed(desk: Desk, state: State, name: str, value: int, reason: str = "", for_s: float | None = None) -> Desk:
    """A change to be agreed to, made by hand unless there is a `reason`."""
    return change_desk.proposed(desk, dials(state), name, value, reason, for_s)


def reset(desk: Desk, state: State) -> Desk:
    name = chosen(desk, state)
    if name is None:
        return desk
    dial = dials(state)[name]
    if dial.value == dial.start and dial.who is None:
        return replace(desk, failure=f"{fmt.clean(name)} stands where the engine was started.")
    return asked(desk, Pending(name, dial.value, dial.start, is_reset=True))


def reverting(desk: Desk, state: State, reason: str) -> Desk:
    """Back to what it was before the last move."""
    move = revertable(desk, state)
    return desk if move is None else proposed(desk, state, move.dial, move.before, reason)


def revertable(desk: Desk, state: State) -> DialMove | None:
    return last_move(state) if desk.pending is None else None


def done(desk: Desk, outcome: str) -> Desk:
    """The answer came; the snapshot may not show it yet."""
    sent = desk.sending
    return change_desk.done(desk, outcome, (sent.name, sent.value) if sent is not None else None)


def order(pending: Pending[int], reason: str, key: str) -> DialsSet:
    """What the host is asked for: this, and only if the dial still stands where it was seen."""
    return DialsSet(
        values={pending.name: None if pending.is_reset else pending.value},
        for_s=pending.for_s,
        expected={pending.name: pending.seen},
        reason=(pending.reason or reason)[:REASON_CHARS],
        idempotency_key=key,
    )


def place(desk: Desk, state: State) -> str:
    """As the action table names it: what can be done here."""
    if not dials(state):
        return "dials.none"
    if (stage := change_desk.stage(desk)) is not Stage.NONE:
        return f"dials.{stage}"
    return "dials.moved" if revertable(desk, state) is not None else "dials.still"
