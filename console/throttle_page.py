"""The throttle screen as lines: the limits and whose they are, the change being made, the controller, the gate.

Pure like the overview. On a low terminal the controller's gauges, the waits and the classes are left out: what is in
force and what was refused come first.
"""

from __future__ import annotations

from console import format as fmt
from console.consequence import METHOD_LIMITS
from console.dials_page import lasting
from console.frame import WAITING, Moment, head, seen, sized
from console.lines import BLANK, Line, Tone, faded, fit, line
from console.model import State, may
from console.polled import Polled, is_old, no_answer, standing
from console.switch_panels import wrapped
from console.throttle_desk import AUTO, Desk, Pending, can_be_none, chosen, rows
from console.throttle_panels import auto_lines, class_lines, count_lines, set_by, value_text
from console.words import ROLE_NEEDED
from engine_host.protocol.methods import METHODS
from engine_host.protocol.throttling import AutoMode, Limit, LimitName, ThrottleSheet

NAME = 20
"""Cells of a limit's name with its mark."""
VALUE = 10
REASON_ROWS = 2
ROOM_FROM = 30
"""Rows from which the gauges, the waits and the classes are told too."""

MEANS: dict[str, str] = {
    LimitName.MAX_INFLIGHT: "choices that the engine works on at once; n = 4 counts as four",
    LimitName.REQUEST_RATE: "choices let in a second",
    LimitName.REQUEST_BURST: "choices let in at once before the rate counts",
    LimitName.PROMPT_TOKEN_RATE: "prompt tokens let in a second",
    LimitName.PROMPT_TOKEN_BURST: "prompt tokens let in at once before the rate counts",
    LimitName.HOLD_QUEUE: "requests that may wait at the gate; beyond them 429",
    LimitName.HOLD_DEADLINE_S: "seconds that each may wait there; then 429",
    LimitName.MIN_CLASS: "requests of a lower priority class are refused",
    LimitName.PAUSED: "every new request waits at the gate; those in flight go on",
    LimitName.DRAINING: "every new request is refused with 503; those in flight go on",
    AUTO: "moves max_inflight by KV, queue, preemptions and TTFT; observe: says what it would do",
}


def throttle_page(
    live: State, desk: Desk, polled: Polled[ThrottleSheet], moment: Moment, width: int, height: int
) -> list[Line]:
    state, now = seen(live, moment)
    top = head(state, live, moment, now, width)
    if state.snapshot is None:
        return sized([*top, WAITING], width, height)
    sheet = polled.answer
    if sheet is None:
        asking = line(("Throttle  ", Tone.LABEL), *standing(polled, "the limits", now))
        return sized([*top, asking, *no_answer(polled, width)], width, height)
    body = [*_table(sheet, desk, state, width), BLANK, *_said(desk, width), *_beside(sheet, width, height)]
    if is_old(polled, state, now):
        body = [*no_answer(polled, width), standing(polled, "this", now), *faded(body)]
    return sized([*top, *body], width, height)


def _table(sheet: ThrottleSheet, desk: Desk, state: State, width: int) -> list[Line]:
    on = chosen(desk, sheet)
    found = rows(sheet)
    table = [
        line((f"{'Throttle':<{NAME}}", Tone.LABEL), (f"{'in force':>{VALUE}}{'profile':>{VALUE}}  set by", Tone.FAINT)),
        *(_row(name, limit, name == on, width) for name, limit in found.items()),
        line((f"  {MEANS.get(on or '', '')}", Tone.FAINT)),
    ]
    if on is not None and found[on].reason:
        parts = wrapped(f"reason: {fmt.clean(found[on].reason)}", width - 3)[:REASON_ROWS]
        table += [line((f"  {part}", Tone.FAINT)) for part in parts]
    risk = METHODS[METHOD_LIMITS].risk
    if not may(state, risk):
        table.append(line((f"  Read-only: to set one needs {ROLE_NEEDED[risk]}.", Tone.NOTICE)))
    return table


def _row(name: str, limit: Limit, is_chosen: bool, width: int) -> Line:
    is_set = limit.who is not None
    tone = Tone.WARN if limit.value is True else Tone.STRONG if is_set else Tone.PLAIN
    profile = "" if name == AUTO else value_text(limit.profile)
    row = fit(
        line(
            "▸ " if is_chosen else "  ",
            f"{fmt.clean(name):<{NAME - 2}}",
            (f"{value_text(limit.value):>{VALUE}}", tone),
            (f"{profile:>{VALUE}}  ", Tone.FAINT),
            *set_by(limit.who, limit.since, limit.until),
        ),
        width,
    )
    return tuple((text, Tone.CHOSEN) for text, _ in row) if is_chosen else row


def _said(desk: Desk, width: int) -> list[Line]:
    """The change being made, or what became of the last one."""
    if desk.pending is not None:
        keys = (("enter", Tone.KEY), " sets it, ", ("esc", Tone.KEY), " leaves it")
        return [line((f"  ▸ {change_words(desk.pending)}? ", Tone.STRONG), *keys), BLANK]
    if desk.sending is not None:
        return [line(f"  {change_words(desk.sending)}: waiting until the gate goes by it …"), BLANK]
    told, mark, tone = desk.failure or desk.done, "×" if desk.failure else "●", Tone.WARN if desk.failure else Tone.GOOD
    parts = wrapped(told, width - 5) if told else []
    return [*(line((f"  {mark} " if i == 0 else "    ", tone), part) for i, part in enumerate(parts)), BLANK]


def change_words(pending: Pending) -> str:
    lasts = "" if pending.for_s is None else f" for {lasting(pending.for_s)}"
    if pending.is_reset:
        to = "the profile's" if pending.name == AUTO or can_be_none(pending.name) else value_text(pending.value)
        return f"{fmt.clean(pending.name)} {value_text(pending.seen)} → {to} (cleared)"
    return f"{fmt.clean(pending.name)} {value_text(pending.seen)} → {value_text(pending.value)}{lasts}"


def _beside(sheet: ThrottleSheet, width: int, height: int) -> list[Line]:
    """The controller and the gate."""
    gate = count_lines(sheet.counts, width)
    if height < ROOM_FROM:
        return [*_auto_in_short(sheet, width), *gate]
    auto = [] if sheet.auto.mode is AutoMode.OFF else [*auto_lines(sheet.auto, width, sheet.at), BLANK]
    return [*auto, *gate, *([BLANK, *class_lines(sheet)] if sheet.counts.classes else [])]


def _auto_in_short(sheet: ThrottleSheet, width: int) -> list[Line]:
    auto = sheet.auto
    if auto.mode is AutoMode.OFF:
        return []
    would = "would be " if auto.mode is AutoMode.OBSERVE else ""
    cap = f"cap {would}{value_text(auto.cap)}"
    if auto.overruled_by is not None:
        cap += f"; overruled by {fmt.clean(auto.overruled_by)}"
    watched = [gauge for gauge in auto.gauges if gauge.enter is not None]
    figures = "  ".join(f"{fmt.clean(gauge.name)} {fmt.significant(gauge.value)}" for gauge in watched)
    first = line((f"{'auto':<13}", Tone.LABEL), f"{cap}  ", (figures, Tone.FAINT))
    if not auto.text:
        return [first]
    when = f"{fmt.clock(auto.acted_at)} " if auto.acted_at is not None else ""
    return [first, line(" " * 13, (wrapped(when + fmt.clean(auto.text), max(20, width - 13))[0], Tone.FAINT))]
