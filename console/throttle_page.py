"""The throttle screen as lines: the limits and whose they are, the change being made, the controller, the gate.

Pure like the overview. On a low terminal the controller's thresholds, the waits and the classes are left out: what is
in force and why, what the controller did last and what was refused come first.
"""

from __future__ import annotations

import textwrap

from console import format as fmt
from console.change_desk import Pending
from console.change_lines import lasting, outcome, question
from console.consequence import METHOD_LIMITS
from console.frame import HEAD, WAITING, Moment, head, seen, sized
from console.lines import BLANK, Line, Tone, clip, faded, fit, line
from console.model import State, may
from console.polled import Polled, is_old, no_answer, standing
from console.throttle_desk import Desk, chosen, rows
from console.throttle_panels import auto_lines, class_lines, count_lines, set_by, then_words, value_text
from console.words import ROLE_NEEDED
from engine_host.protocol.methods import METHODS
from engine_host.protocol.throttling import AUTO, AutoGauge, AutoMode, Limit, LimitName, LimitValue, ThrottleSheet

NAME = 20
"""Cells of a limit's name with its mark."""
VALUE = 10
SET_BY = 40
"""Of who, since when and until when."""
REASONS_FROM = 110
"""Columns from which each row has room for its reason."""
WHY_ROWS = 2
SAID_ROWS = 3
GATE_ROWS = 3
"""What is in flight and held, what was let in and refused, and the refusals by reason."""
LABEL = 13
"""Of what stands below the limits, as `count_lines` has it."""
ROOM_FROM = 30
"""Rows from which the gauges, the waits and the classes are told too."""
MOST_SHOWN = 1e15
"""Beyond it no number is any limit."""

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
    AUTO: "moves max_inflight by KV, queue, preemptions, TTFT; observe only says it",
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
    old = [*no_answer(polled, width), standing(polled, "this", now)] if is_old(polled, state, now) else []
    body = _body(sheet, desk, state, width, height - HEAD - len(old))
    return sized([*top, *old, *(faded(body) if old else body)], width, height)


def _body(sheet: ThrottleSheet, desk: Desk, state: State, width: int, height: int) -> list[Line]:
    """What is in force and why, what the controller did last and what is refused come before all the rest; where there
    is no room even for them, the rows about the cursor and the question."""
    name = chosen(desk, sheet) or ""
    said = _said(desk, state, width)
    auto, gate = _auto_in_short(sheet, width), count_lines(sheet.counts, width)
    found = rows(sheet)
    why = _why(found, name, width)
    shown = _window(list(found), name, height - 1 - len(said))
    left = height - 1 - len(shown) - max(1, len(said)) - len(why[:1]) - len(auto) - GATE_ROWS
    if height >= ROOM_FROM:
        auto, gate = _with_room(sheet, width, gate)
    else:
        gate = gate[: max(GATE_ROWS, GATE_ROWS + left - 1)]
    table = [_heading(width), *(_row(one, found[one], one == name, width) for one in shown)]
    means = [line((f"  {MEANS.get(name, '')}", Tone.FAINT))] if left > 0 else []
    why = why[: WHY_ROWS if left > 2 else 1]
    gap = [BLANK] if left > 4 else []
    said = [*gap, *said] if said else [BLANK]
    return [*table, *means, *said, *why, *(gap if len(said) > 1 or why else []), *auto, *gate]


def _window(names: list[str], chosen_name: str, room: int) -> list[str]:
    """As many as there is room for, the chosen one among them."""
    room = max(1, min(room, len(names)))
    at = names.index(chosen_name) if chosen_name in names else 0
    first = max(0, at - room + 1)
    return names[first : first + room]


def _heading(width: int) -> Line:
    reason = f"{'':{SET_BY - 6}}reason" if width >= REASONS_FROM else ""
    columns = f"{'in force':>{VALUE}}{'profile':>{VALUE}}  set by{reason}"
    return line((f"{'Throttle':<{NAME}}", Tone.LABEL), (columns, Tone.FAINT))


def _row(name: str, limit: Limit, is_chosen: bool, width: int) -> Line:
    is_set = limit.who is not None
    tone = Tone.WARN if limit.value is True else Tone.STRONG if is_set else Tone.PLAIN
    profile = "" if name == AUTO else _cell(limit.profile)
    whose = set_by(limit.who, limit.since, limit.until)
    if width >= REASONS_FROM:
        whose = line(*fit(whose, SET_BY), (_reason(limit), Tone.FAINT))
    row = fit(
        line(
            "▸ " if is_chosen else "  ",
            f"{clip(fmt.clean(name), NAME - 2):<{NAME - 2}}",
            (f"{_cell(limit.value):>{VALUE}}", tone),
            (f"{profile:>{VALUE}}  ", Tone.FAINT),
            *whose,
        ),
        width,
    )
    return tuple((text, Tone.CHOSEN) for text, _ in row) if is_chosen else row


def _cell(value: LimitValue) -> str:
    """In the width of a column: a number in short, a name cut."""
    text = value_text(value)
    if len(text) < VALUE or isinstance(value, bool):
        return text
    return fmt.si(float(value)) if isinstance(value, int | float) and abs(value) < MOST_SHOWN else clip(text, VALUE - 1)


def _why(found: dict[str, Limit], name: str, width: int) -> list[Line]:
    """The reasons of all that operators set, the cursor's first; none where each stands in its own row. That of the
    controller has a place of its own."""
    if width >= REASONS_FROM:
        return []
    order = sorted(found.items(), key=lambda item: item[0] != name)
    told = [(one, why) for one, limit in order if limit.who != AUTO and (why := _reason(limit))]
    reasons = "; ".join(f"{fmt.clean(one)}: {why}" for one, why in told)
    parts = textwrap.wrap(reasons, max(20, width - LABEL), max_lines=WHY_ROWS, placeholder=" …")
    return [line((f"{'why' if i == 0 else '':<{LABEL}}", Tone.LABEL), part) for i, part in enumerate(parts)]


def _reason(limit: Limit) -> str:
    """Why it was set, and what it was set over."""
    return ", ".join(part for part in (fmt.clean(limit.reason), then_words(limit)) if part)


def _said(desk: Desk, state: State, width: int) -> list[Line]:
    """The change being made, or what became of the last one; to who may make none, that."""
    if desk.pending is not None:
        why = f"    why: {fmt.clean(desk.pending.reason)}" if desk.pending.reason else ""
        asked = question(change_words(desk.pending))
        return [asked, line((clip(why, width), Tone.FAINT))] if why else [asked]
    if desk.sending is not None:
        return [line(f"  {change_words(desk.sending)}: waiting until the gate goes by it …")]
    if told := outcome(desk, width, SAID_ROWS):
        return told
    risk = METHODS[METHOD_LIMITS].risk
    if not may(state, risk):
        return [line((f"  Read-only: to set one needs {ROLE_NEEDED[risk]}.", Tone.NOTICE))]
    return []


def change_words(pending: Pending[LimitValue]) -> str:
    lasts = lasting(pending.for_s)
    name, seen, value = fmt.clean(pending.name), value_text(pending.seen), value_text(pending.value)
    if pending.is_reset:
        return f"{name} {seen} → the profile's{'' if pending.name == AUTO else f' {value}'}"
    return f"{name} stays {value}{lasts}" if value == seen else f"{name} {seen} → {value}{lasts}"


def _with_room(sheet: ThrottleSheet, width: int, gate: list[Line]) -> tuple[list[Line], list[Line]]:
    """All about the controller, and the classes too."""
    auto = [] if sheet.auto.mode is AutoMode.OFF else [*auto_lines(sheet.auto, width, sheet.at), BLANK]
    return auto, [*gate, *([BLANK, *class_lines(sheet)] if sheet.counts.classes else [])]


def _auto_in_short(sheet: ThrottleSheet, width: int) -> list[Line]:
    auto = sheet.auto
    if auto.mode is AutoMode.OFF:
        return []
    if auto.mode is AutoMode.OBSERVE:
        cap = f"cap would be {value_text(auto.cap)}"
    else:
        wins = f" ({clip(fmt.clean(auto.overruled_by), 8)}'s wins)" if auto.overruled_by is not None else ""
        cap = f"cap {value_text(auto.cap)}{wins}"
    watched = [gauge for gauge in auto.gauges if gauge.enter is not None]
    figures = [(f"  {_gauge(gauge)}", Tone.WARN if gauge.over_for_s is not None else Tone.FAINT) for gauge in watched]
    first = line((f"{'auto':<{LABEL}}", Tone.LABEL), cap, *figures)
    when = f"{fmt.clock(auto.acted_at)} " if auto.acted_at is not None else ""
    text = clip(when + fmt.clean(auto.text), max(20, width - LABEL)) if auto.text else "it has done nothing yet"
    return [first, line(" " * LABEL, (text, Tone.PLAIN if auto.text else Tone.FAINT))]


def _gauge(gauge: AutoGauge) -> str:
    """So short that all four fit beside the cap on 80 columns."""
    if gauge.value is None:
        return f"{fmt.clean(gauge.name)} {fmt.DASH}"
    match gauge.name:
        case "kv":
            return f"kv {gauge.value * 100:.0f}%"
        case "waiting":
            return f"wait {gauge.value:.0f}"
        case "preemptions":
            return f"preempt {fmt.significant(gauge.value)}"
        case "ttft_p95":
            return f"ttft {fmt.latency(gauge.value)}"
        case name:
            return f"{fmt.clean(name)} {fmt.significant(gauge.value)}"
