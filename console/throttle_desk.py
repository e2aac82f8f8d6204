"""What the throttle screen holds besides the host's word, and how it changes: a change is made as `console.change_desk`
has it, of the limits that the gate goes by and the controller's mode. Why it is made can be typed."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from console import change_desk
from console import format as fmt
from console.argument_types import Number, OrNone, Span, Whole
from console.change_desk import Pending, Stage, asked, at_cursor, reasoned, typing
from console.commands.throttle_parser import DAY_S, LEAST_RATE, MOST, QUEUE_MOST
from console.throttle_panels import value_text
from engine_host.protocol.methods import Change, ThrottleAuto, ThrottleClear, ThrottleSet
from engine_host.protocol.throttling import AUTO, AutoMode, Limit, LimitName, LimitValue, ThrottleSheet

SWITCHES = frozenset({LimitName.PAUSED, LimitName.DRAINING})

_COUNT, _RATE = OrNone(Whole(1, MOST)), OrNone(Number(LEAST_RATE, float(MOST)))
_COUNT_HINT, _RATE_HINT = f"1 to {MOST:,}, or none", f"{LEAST_RATE:g} to {MOST:,}, or none"
_TYPED: dict[str, tuple[Callable[[str], LimitValue], str]] = {
    LimitName.MAX_INFLIGHT: (_COUNT, _COUNT_HINT),
    LimitName.REQUEST_RATE: (_RATE, _RATE_HINT),
    LimitName.REQUEST_BURST: (_COUNT, _COUNT_HINT),
    LimitName.PROMPT_TOKEN_RATE: (_RATE, _RATE_HINT),
    LimitName.PROMPT_TOKEN_BURST: (_COUNT, _COUNT_HINT),
    LimitName.HOLD_QUEUE: (Whole(0, QUEUE_MOST), f"0 to {QUEUE_MOST:,}"),
    LimitName.HOLD_DEADLINE_S: (Span(0.0, DAY_S), "seconds or 2m, at most 24h"),
}
"""By limit: what reads a value that is typed, and what is to be typed. The others are chosen, not typed."""
_SPANS: dict[str, tuple[float, float]] = {
    LimitName.HOLD_QUEUE: (0.0, QUEUE_MOST),
    LimitName.HOLD_DEADLINE_S: (1.0, DAY_S),
}
"""That steps lead through; what lies below can be typed."""
_SPAN = (1.0, float(MOST))
"""Of the others."""
_FIRST = 1
"""Where steps begin that lead up from no limit, if nothing is in flight to begin at."""


@dataclass(frozen=True, slots=True)
class Desk(change_desk.Desk[LimitValue]):
    """Of the throttle screen."""


def rows(sheet: ThrottleSheet | None) -> dict[str, Limit]:
    """Every limit, and the controller's mode as one more, `AUTO`, below them."""
    if sheet is None:
        return {}
    auto = sheet.auto
    mode = Limit(value=auto.mode.value, profile=None, who=auto.who, since=auto.since, until=auto.until, then=auto.then)
    return {**sheet.limits, AUTO: mode}


def chosen(desk: Desk, sheet: ThrottleSheet | None) -> str | None:
    return at_cursor(desk, rows(sheet))


def followed(desk: Desk, sheet: ThrottleSheet) -> Desk:
    """The desk after a newer sheet."""
    return change_desk.followed(desk, rows(sheet), "limit", value_text)


def nudged(desk: Desk, sheet: ThrottleSheet | None, direction: int) -> Desk:
    """One step up (1) or down (-1) from what is being made of it, else from what it is. Where there are only a few
    values the first follows the last, so that one key leads to each of them."""
    name = chosen(desk, sheet)
    if name is None or sheet is None:
        return desk
    now = desk.pending.value if desk.pending is not None else rows(sheet)[name].value
    options = choices(name, sheet)
    if options:
        at = options.index(now) if now in options else 0
        if len(options) == 1 and now in options:
            return replace(desk, failure=f"{fmt.clean(name)}: the profile has no classes.")
        return proposed(desk, sheet, name, options[(at + direction) % len(options)])
    if isinstance(now, str):
        return desk
    if now is None:
        is_cap = name == LimitName.MAX_INFLIGHT
        return proposed(desk, sheet, name, max(_FIRST, sheet.counts.inflight) if is_cap else _FIRST)
    return proposed(desk, sheet, name, stepped(now, direction, *_SPANS.get(name, _SPAN)))


def stepped(value: float, direction: int, least: float, most: float) -> float:
    """To the next multiple of a step that is a power of two, about an eighth of the value; at the end of the span, and
    beyond it, never back."""
    if (value <= least and direction < 0) or (value >= most and direction > 0):
        return value
    value = min(value, most * 2)
    step = 2.0 ** max(0, math.floor(math.log2(value)) - 3) if value >= 1 else 1.0
    following = (math.floor(value / step) + 1) * step if direction > 0 else (math.ceil(value / step) - 1) * step
    return int(min(max(following, least), most))


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


def typed(desk: Desk, sheet: ThrottleSheet | None, text: str) -> Desk:
    """What was typed as the chosen row's value, or as the reason of what is being made of it; a fault is said and the
    typing goes on."""
    if desk.is_typing_reason:
        return reasoned(desk, text)
    name = chosen(desk, sheet)
    if name is None or sheet is None or name not in _TYPED:
        return typing(desk, False)
    written = text.strip().replace(",", "")
    try:
        value = _TYPED[name][0](f"{written}s" if name == LimitName.HOLD_DEADLINE_S and written.isdigit() else written)
    except argparse.ArgumentTypeError:
        return replace(desk, typing_fault=typing_hint(name))
    # The value in force too: it makes the controller's cap one's own, and a setting that is to end soon last.
    return proposed(typing(desk, False), sheet, name, value, also_same=True)


def taken_off(desk: Desk, sheet: ThrottleSheet | None) -> Desk:
    """No such limit."""
    name = chosen(desk, sheet)
    if name is None or sheet is None or not can_be_none(name):
        return desk
    limit = rows(sheet)[name]
    keeps_controller_out = name == LimitName.MAX_INFLIGHT and limit.who is None
    if limit.value is None and desk.pending is None and not keeps_controller_out:
        return replace(desk, failure=f"{fmt.clean(name)}: there is no such limit in force.")
    return proposed(desk, sheet, name, None, also_same=keeps_controller_out)


def can_be_none(name: str) -> bool:
    return name in _TYPED.keys() - _SPANS.keys() or name == LimitName.MIN_CLASS


def pausing(desk: Desk, sheet: ThrottleSheet | None) -> Desk:
    """Hold everything at the gate, or let it go again, wherever the cursor is."""
    found = rows(sheet).get(LimitName.PAUSED)
    return desk if found is None or sheet is None else proposed(desk, sheet, LimitName.PAUSED, not found.value)


def proposed(desk: Desk, sheet: ThrottleSheet, name: str, value: LimitValue, *, also_same: bool = False) -> Desk:
    """A change to be agreed to; the reason that was typed for it stays."""
    reason = desk.pending.reason if desk.pending is not None and desk.pending.name == name else ""
    return change_desk.proposed(desk, rows(sheet), name, value, reason, also_same=also_same)


def reset(desk: Desk, sheet: ThrottleSheet | None) -> Desk:
    name = chosen(desk, sheet)
    if name is None:
        return desk
    limit = rows(sheet)[name]
    if limit.who == AUTO:
        fact = "the cap is the controller's; a cap set by hand wins over it, and so does auto off"
        return replace(desk, failure=f"{fmt.clean(name)}: {fact}.")
    if limit.who is None:
        return replace(desk, failure=f"{fmt.clean(name)} stands where the profile puts it.")
    return asked(desk, Pending(name, limit.value, limit.profile, is_reset=True))


def done(desk: Desk, outcome: str, sheet: ThrottleSheet) -> Desk:
    """`sheet`: what is in force after it."""
    sent = desk.sending
    limit = rows(sheet).get(sent.name) if sent is not None else None
    made = (sent.name, limit.value) if sent is not None and limit is not None else None
    return change_desk.done(desk, outcome, made, is_seen=True)


def forgotten(desk: Desk) -> Desk:
    """Another host: what was said of the former one is no more."""
    return Desk(chosen=desk.chosen, is_typing=desk.is_typing, is_typing_reason=desk.is_typing_reason)


def order(pending: Pending[LimitValue], reason: str, key: str) -> tuple[str, Change]:
    """The method, and what the host is asked for: this, and only if the limit still stands where it was seen. `reason`:
    where none was typed."""
    reason = pending.reason or reason
    if pending.is_reset:
        seen = {pending.name: pending.seen}
        return "throttle.clear", ThrottleClear(names=[pending.name], expected=seen, reason=reason, idempotency_key=key)
    if pending.name == AUTO:
        return "throttle.auto", ThrottleAuto(
            mode=AutoMode(str(pending.value)),
            expected=AutoMode(str(pending.seen)),
            for_s=pending.for_s,
            reason=reason,
            idempotency_key=key,
        )
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
    if (stage := change_desk.stage(desk)) is not Stage.NONE:
        return f"throttle.{stage}"
    name = chosen(desk, sheet) or ""
    row = "typed" if is_typed(name) else "chosen"
    return f"throttle.{row}_or_none" if can_be_none(name) else f"throttle.{row}"
