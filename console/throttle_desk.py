"""What the throttle screen holds besides the host's word: the row the cursor is on, and the change that is being made.

Immutable, changed only by the functions here, and made as on the dials screen: a change remembers the value that it was
begun from, the host is told that one as expected, and a row that moves meanwhile ends the change unsent.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from console import format as fmt
from console.argument_types import Number, OrNone, Span, Whole
from console.commands.throttle_parser import DAY_S, LEAST_RATE, MOST
from console.dials_desk import LASTS
from console.throttle_panels import value_text
from engine_host.protocol.methods import Change, ThrottleAuto, ThrottleClear, ThrottleSet
from engine_host.protocol.throttling import AutoMode, Limit, LimitName, LimitValue, ThrottleSheet

AUTO = "auto"
"""The row of the controller's mode, below those of the limits."""

SWITCHES = frozenset({LimitName.PAUSED, LimitName.DRAINING})

_COUNT, _RATE = OrNone(Whole(1, MOST)), OrNone(Number(LEAST_RATE, float(MOST)))
_TYPED: dict[str, tuple[Callable[[str], LimitValue], str]] = {
    LimitName.MAX_INFLIGHT: (_COUNT, "choices, or none"),
    LimitName.REQUEST_RATE: (_RATE, "choices a second, or none"),
    LimitName.REQUEST_BURST: (_COUNT, "choices, or none"),
    LimitName.PROMPT_TOKEN_RATE: (_RATE, "tokens a second, or none"),
    LimitName.PROMPT_TOKEN_BURST: (_COUNT, "tokens, or none"),
    LimitName.HOLD_QUEUE: (Whole(0, 1_000_000), "requests; 0: none waits"),
    LimitName.HOLD_DEADLINE_S: (Span(0.0, DAY_S), "a span: 20s, 2m"),
}
"""By limit: what reads a value that is typed, and what is to be typed. The others are chosen, not typed."""
_LEAST: dict[str, float] = {LimitName.HOLD_QUEUE: 0.0, LimitName.HOLD_DEADLINE_S: 1.0}
"""That steps lead down to; 1 for the others. What lies below can be typed."""
_FIRST = 1
"""Where steps begin that lead up from no limit, if nothing is in flight to begin at."""


@dataclass(frozen=True, slots=True)
class Pending:
    """A change that nobody has sent yet."""

    name: str
    seen: LimitValue
    """The value in force when it was begun."""
    value: LimitValue
    for_s: float | None = None
    is_reset: bool = False
    """Back to what the profile says, and nobody's any more."""


@dataclass(frozen=True, slots=True)
class Desk:
    chosen: str = ""
    pending: Pending | None = None
    sending: Pending | None = None
    """Asked of the host, and not answered yet."""
    is_typing: bool = False
    typing_fault: str = ""
    failure: str = ""
    """What became of the last change, in words, when it was not made."""
    done: str = ""
    """What the host said of the last change that was made."""


def rows(sheet: ThrottleSheet | None) -> dict[str, Limit]:
    """Every limit, and the controller's mode as one more."""
    if sheet is None:
        return {}
    auto = sheet.auto
    mode = Limit(value=auto.mode.value, profile=None, who=auto.who, since=auto.since, until=auto.until)
    return {**sheet.limits, AUTO: mode}


def chosen(desk: Desk, sheet: ThrottleSheet | None) -> str | None:
    found = rows(sheet)
    return desk.chosen if desk.chosen in found else next(iter(found), None)


def followed(desk: Desk, sheet: ThrottleSheet | None) -> Desk:
    """The desk after a newer sheet: what is being made of a row that has moved meanwhile is given up."""
    pending = desk.pending
    if pending is None or sheet is None:
        return desk
    limit = rows(sheet).get(pending.name)
    if limit is not None and limit.value == pending.seen:
        return desk
    if limit is None:
        return replace(desk, pending=None, failure=f"{fmt.clean(pending.name)}: there is no such limit now.")
    by = f" by {fmt.clean(limit.who)}" if limit.who is not None else ""
    fact = f"{fmt.clean(pending.name)} was set to {value_text(limit.value)}{by} meanwhile"
    return replace(desk, pending=None, failure=f"{fact}; your change was not sent.")


def moved(desk: Desk, sheet: ThrottleSheet | None, steps: int) -> Desk:
    names = list(rows(sheet))
    if not names or desk.pending is not None:
        return desk
    at = names.index(chosen(desk, sheet) or names[0])
    return replace(desk, chosen=names[min(len(names) - 1, max(0, at + steps))])


def nudged(desk: Desk, sheet: ThrottleSheet | None, direction: int) -> Desk:
    """One step up (1) or down (-1) from what is being made of it, else from what it is."""
    name = chosen(desk, sheet)
    if name is None or sheet is None:
        return desk
    now = desk.pending.value if desk.pending is not None else rows(sheet)[name].value
    options = choices(name, sheet)
    if options:
        at = options.index(now) if now in options else 0
        return proposed(desk, sheet, name, options[min(len(options) - 1, max(0, at + direction))])
    if isinstance(now, str):
        return desk
    if now is None:
        is_cap = name == LimitName.MAX_INFLIGHT
        return proposed(desk, sheet, name, max(_FIRST, sheet.counts.inflight) if is_cap else _FIRST)
    return proposed(desk, sheet, name, stepped(float(now), direction, _LEAST.get(name, 1.0)))


def stepped(value: float, direction: int, least: float) -> int:
    """To the next multiple of a step that is a power of two, about an eighth of the value."""
    step = 2.0 ** max(0, math.floor(math.log2(value)) - 3) if value >= 1 else 1.0
    following = (math.floor(value / step) + 1) * step if direction > 0 else (math.ceil(value / step) - 1) * step
    return int(min(max(following, least), MOST))


def choices(name: str, sheet: ThrottleSheet) -> list[LimitValue]:
    """What a row can be that is chosen, in order; empty for one that takes numbers."""
    if name == AUTO:
        return [mode.value for mode in AutoMode]
    if name in SWITCHES:
        return [False, True]
    return [None, *sheet.class_names] if name == LimitName.MIN_CLASS else []


def is_typed(name: str | None) -> bool:
    return name in _TYPED


def typing_hint(name: str) -> str:
    return _TYPED[name][1] if name in _TYPED else ""


def typing(desk: Desk, is_typing: bool) -> Desk:
    return replace(desk, is_typing=is_typing, typing_fault="")


def typed(desk: Desk, sheet: ThrottleSheet | None, text: str) -> Desk:
    """What was typed as the chosen row's value; a fault is said and the typing goes on."""
    name = chosen(desk, sheet)
    if name is None or sheet is None or name not in _TYPED:
        return typing(desk, False)
    written = text.strip().replace(",", "")
    try:
        value = _TYPED[name][0](f"{written}s" if name == LimitName.HOLD_DEADLINE_S and written.isdigit() else written)
    except argparse.ArgumentTypeError as error:
        return replace(desk, typing_fault=str(error))
    return proposed(typing(desk, False), sheet, name, value)


def taken_off(desk: Desk, sheet: ThrottleSheet | None) -> Desk:
    """No such limit."""
    name = chosen(desk, sheet)
    if name is None or sheet is None:
        return desk
    if not can_be_none(name):
        return replace(desk, failure=f"{fmt.clean(name)} always has a value; r returns it to the profile's.")
    return proposed(desk, sheet, name, None)


def can_be_none(name: str) -> bool:
    return name != AUTO and name not in SWITCHES and name not in _LEAST


def pausing(desk: Desk, sheet: ThrottleSheet | None) -> Desk:
    """Hold everything at the gate, or let it go again, wherever the cursor is."""
    found = rows(sheet).get(LimitName.PAUSED)
    return desk if found is None or sheet is None else proposed(desk, sheet, LimitName.PAUSED, not found.value)


def proposed(desk: Desk, sheet: ThrottleSheet, name: str, value: LimitValue) -> Desk:
    """A change to be agreed to; none when the row stands there already."""
    found = rows(sheet).get(name)
    if found is None:
        return desk
    same = desk.pending if desk.pending is not None and desk.pending.name == name else None
    seen = same.seen if same is not None else found.value
    if value == seen and type(value) is type(seen):
        return replace(desk, chosen=name, pending=None)
    pending = Pending(name, seen, value, same.for_s if same is not None else None)
    return replace(desk, chosen=name, pending=pending, failure="", done="")


def reset(desk: Desk, sheet: ThrottleSheet | None) -> Desk:
    name = chosen(desk, sheet)
    if name is None:
        return desk
    limit = rows(sheet)[name]
    if limit.who is None:
        return replace(desk, failure=f"{fmt.clean(name)} stands where the profile puts it.")
    return replace(desk, pending=Pending(name, limit.value, limit.profile, is_reset=True), failure="", done="")


def lasting_next(desk: Desk) -> Desk:
    """The next span that the change is made for."""
    if desk.pending is None or desk.pending.is_reset:
        return desk
    at = LASTS.index(desk.pending.for_s) if desk.pending.for_s in LASTS else -1
    return replace(desk, pending=replace(desk.pending, for_s=LASTS[(at + 1) % len(LASTS)]))


def dropped(desk: Desk) -> Desk:
    return replace(desk, pending=None, failure="", done="")


def sending(desk: Desk) -> Desk:
    return replace(desk, sending=desk.pending, pending=None, failure="", done="")


def answered(desk: Desk, outcome: str, *, is_done: bool) -> Desk:
    return replace(desk, sending=None, done=outcome if is_done else "", failure="" if is_done else outcome)


def forgotten(desk: Desk) -> Desk:
    """Another host: what was said of the former one is no more."""
    return Desk(chosen=desk.chosen, is_typing=desk.is_typing)


def order(pending: Pending, reason: str, key: str) -> tuple[str, Change]:
    """The method, and what the host is asked for: this, and only if the limit still stands where it was seen."""
    if pending.is_reset:
        return "throttle.clear", ThrottleClear(names=[pending.name], reason=reason, idempotency_key=key)
    if pending.name == AUTO:
        mode = AutoMode(str(pending.value))
        return "throttle.auto", ThrottleAuto(mode=mode, for_s=pending.for_s, reason=reason, idempotency_key=key)
    return "throttle.set", ThrottleSet(
        limits={pending.name: pending.value},
        expected={pending.name: pending.seen},
        for_s=pending.for_s,
        reason=reason,
        idempotency_key=key,
    )


def place(desk: Desk, sheet: ThrottleSheet | None) -> str:
    """As the action table names it: what can be done here."""
    if sheet is None:
        return "throttle.none"
    if desk.is_typing:
        return "throttle.typing"
    if desk.sending is not None:
        return "throttle.sending"
    if desk.pending is not None:
        return "throttle.pending"
    return "throttle.typed" if is_typed(chosen(desk, sheet)) else "throttle.chosen"
