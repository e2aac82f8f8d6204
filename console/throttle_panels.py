"""What there is to say of the gate and its limits, as lines: all of it for `throttle show`, parts of it for the page.

Pure functions of the wire types.

Reasons, names of classes and refusals come from outside: control characters are taken out.
"""

from __future__ import annotations

import textwrap

from console import format as fmt
from console.lines import BLANK, Line, Tone, clip, line
from engine_host.protocol.snapshot import Percentiles
from engine_host.protocol.throttling import AutoGauge, AutoMode, AutoState, GateCounts, Limit, LimitValue, ThrottleSheet

_NAME, _VALUE = 18, 9
"""Cells of the columns: the longest name of a limit, and numbers up to a million."""
_WHO = 10
"""Of a login; the whole one is in the events and in --json."""
_WAIT_WINDOW = "5m"


def throttle_lines(sheet: ThrottleSheet, width: int, now: float) -> list[Line]:
    """`now`: Unix time, of whoever reads it."""
    rows = [line((f"{'limit':<{_NAME}}  {'in force':>{_VALUE}}  {'profile':>{_VALUE}}  set by", Tone.FAINT))]
    for name, limit in sheet.limits.items():
        rows += _limit(fmt.clean(name), limit, width)
    rows += [BLANK, *auto_lines(sheet.auto, width, now)]
    rows += [BLANK, *count_lines(sheet.counts, width)]
    if sheet.counts.classes:
        rows += [BLANK, *class_lines(sheet)]
    return rows


def _limit(name: str, limit: Limit, width: int) -> list[Line]:
    is_moved = limit.value != limit.profile
    tone = Tone.WARN if limit.value is True else Tone.STRONG if is_moved else Tone.PLAIN
    row = line(
        (f"{name:<{_NAME}}", Tone.LABEL),
        "  ",
        (f"{value_text(limit.value):>{_VALUE}}", tone),
        (f"  {value_text(limit.profile):>{_VALUE}}  ", Tone.FAINT),
        *set_by(limit.who, limit.since, limit.until),
    )
    return [row, *_because(limit.reason, width), *_because(then_words(limit), width)]


def then_words(limit: Limit | AutoState) -> str:
    """What returns when a setting ends, where that is an operator's too; empty: the profile's, or it stays."""
    then = limit.then
    if then is None or then.who is None or limit.until is None:
        return ""
    ends = f" until {fmt.clock(then.until)}" if then.until is not None else ""
    why = f": {fmt.clean(then.reason)}" if then.reason else ""
    return f"from {fmt.clock(limit.until)} as before: {value_text(then.value)}, by {fmt.clean(then.who)}{ends}{why}"


def value_text(found: LimitValue) -> str:
    match found:
        case None:
            return "none"
        case bool():
            return "yes" if found else "no"
        case int():
            return fmt.count(found)
        case float():
            return f"{found:,.6g}" if found < 1e6 else fmt.si(found)
        case _:
            return fmt.clean(found)


def set_by(who: str | None, since: float | None, until: float | None) -> Line:
    if who is None:
        return line((fmt.DASH, Tone.FAINT))
    began = f" at {fmt.clock(since)}" if since is not None else ""
    ends = f", until {fmt.clock(until)}" if until is not None else ""
    return line(clip(fmt.clean(who), _WHO), (began + ends, Tone.FAINT))


def _because(reason: str, width: int) -> list[Line]:
    text = fmt.clean(reason)
    indent = " " * (_NAME + 2)
    return [line(indent, (row, Tone.FAINT)) for row in textwrap.wrap(text, max(20, width - len(indent)))]


def auto_lines(auto: AutoState, width: int, now: float) -> list[Line]:
    head = line(
        (f"{'auto':<{_NAME}}", Tone.LABEL),
        "  ",
        (f"{auto.mode.value:>{_VALUE}}", Tone.PLAIN if auto.mode is AutoMode.OFF else Tone.STRONG),
        *(line("  ", *set_by(auto.who, auto.since, auto.until)) if auto.who is not None else ()),
    )
    rows = [head, *_because(then_words(auto), width)]
    if auto.mode is not AutoMode.OFF:
        would = "would be " if auto.mode is AutoMode.OBSERVE else ""
        said = f"cap {would}{value_text(auto.cap)}"
        if auto.overruled_by is not None:
            said += f"; overruled: {fmt.clean(auto.overruled_by)} has set max_inflight"
        rows.append(line(" " * (_NAME + 2), said))
        rows += [_gauge(gauge) for gauge in auto.gauges]
    if auto.text:
        ago = f"{fmt.duration(max(0.0, now - auto.acted_at))} ago: " if auto.acted_at is not None else ""
        rows += _because(ago + auto.text, width)
    return rows


def _gauge(gauge: AutoGauge) -> Line:
    if gauge.enter is None:
        return line(" " * (_NAME + 2), (f"{fmt.clean(gauge.name):<11} not watched", Tone.FAINT))
    for_s = f", for {fmt.span(gauge.over_for_s)}" if gauge.over_for_s is not None else ""
    leave = f", up below {_figure(gauge, gauge.leave)}" if gauge.leave is not None else ""
    return line(
        " " * (_NAME + 2),
        f"{fmt.clean(gauge.name):<11}",
        (f"{_figure(gauge, gauge.value):>5}", Tone.WARN if gauge.over_for_s is not None else Tone.PLAIN),
        (f"  down above {_figure(gauge, gauge.enter)}{leave}{for_s}", Tone.FAINT),
    )


def _figure(gauge: AutoGauge, value: float | None) -> str:
    if gauge.name == "waiting" and value is not None and value.is_integer():
        return fmt.count(int(value))
    return fmt.significant(value)


def count_lines(counts: GateCounts, width: int) -> list[Line]:
    oldest = f", the oldest for {fmt.span(counts.oldest_held_s)}" if counts.oldest_held_s is not None else ""
    rows = [
        line(
            ("gate now", Tone.LABEL),
            f"     {fmt.count(counts.inflight)} in flight, {fmt.count(counts.held)} held{oldest}",
        ),
        line(
            ("since start", Tone.LABEL),
            f"  {fmt.count(counts.admitted_total)} admitted, {fmt.count(counts.held_total)} had to wait, ",
            (f"{fmt.count(counts.refused_total)} refused", Tone.WARN if counts.refused_total else Tone.PLAIN),
            f", {fmt.count(counts.gone_total)} gone",
        ),
    ]
    if counts.refused_by_reason:
        by_reason = sorted(counts.refused_by_reason.items(), key=lambda one: -one[1])
        told = ", ".join(f"{fmt.clean(reason)} {fmt.count(number)}" for reason, number in by_reason)
        rows += [line(" " * 13, row) for row in textwrap.wrap(f"refused: {told}", max(20, width - 13))]
    if counts.truncated_total or counts.segmented_total:
        rows.append(
            line(
                " " * 13,
                f"too long: {fmt.count(counts.truncated_total)} cut, {fmt.count(counts.segmented_total)} in windows",
            )
        )
    if (wait := counts.hold_wait.get(_WAIT_WINDOW)) is not None and wait.n:
        rows.append(_wait(wait))
    return rows


def _wait(wait: Percentiles) -> Line:
    figures = f"p50 {fmt.latency(wait.p50_s)}  p95 {fmt.latency(wait.p95_s)}  p99 {fmt.latency(wait.p99_s)}"
    return line(("waits", Tone.LABEL), f"        {figures}  n {fmt.count(wait.n)}", (f"  ({_WAIT_WINDOW})", Tone.FAINT))


def class_lines(sheet: ThrottleSheet) -> list[Line]:
    """The highest first, as they are served."""
    heads = "".join(f"  {head:>{_VALUE}}" for head in ("held", "admitted", "refused"))
    rows = [
        line(
            (f"{fmt.clean(one.name):<{_NAME}}", Tone.LABEL),
            *(f"  {fmt.count(number):>{_VALUE}}" for number in (one.held, one.admitted_total, one.refused_total)),
        )
        for one in reversed(sheet.counts.classes)
    ]
    return [line((f"{'class':<{_NAME}}{heads}", Tone.FAINT)), *rows]
