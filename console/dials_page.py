"""The dials screen as lines: each dial, its range and whose it is, the change being made, what came of the last one.

Pure like the overview. Tokens per second and acceptance stand beside the dials, since that is what they are turned for.
"""

from __future__ import annotations

from console import format as fmt
from console.change_desk import Pending
from console.change_lines import lasting, outcome, question
from console.charts import history_chart
from console.consequence import METHOD_DIALS
from console.dial_effect import RATE, Comparison, Effect, comparison
from console.dials_desk import SPECULATIVE_TOKENS, Desk, chosen, dials, place
from console.frame import Moment, opening, sized
from console.labels import label, over
from console.lines import BLANK, Line, Tone, clip, faded, fit, line
from console.model import State, is_stale, may
from console.switch_panels import wrapped
from console.words import ROLE_NEEDED
from engine_host.protocol.methods import METHODS
from engine_host.protocol.snapshot import Dial, Snapshot

NAME = 22
"""Cells of a dial's name with its mark."""

TALL_FROM = 34
"""Rows from which the charts get more of them."""

REASON_ROWS = 2

MEANS = {
    "max_active_seqs": "requests let in to run at once; those that run already go on",
    "max_scheduled_tokens": "prompt and generated tokens of one step, of all requests together",
    SPECULATIVE_TOKENS: "K: tokens drafted a request and step; 0 drafts none",
}


def dials_page(live: State, desk: Desk, moment: Moment, width: int, height: int) -> list[Line]:
    top = opening(live, moment, width, height, keeps=14, without_engine="so there are no dials")
    if top.snapshot is None:
        return sized(top.rows, width, height)
    state, snapshot = top.state, top.snapshot
    found = dials(state)
    body = _table(found, desk, state, snapshot, width) if found else _none(snapshot, width)
    said = _said(desk, state, width)
    beside = _beside(state, snapshot, width, height)
    if is_stale(state, top.now):
        body, said, beside = faded(body), faded(said), faded(beside)
    return sized([*top.rows, *body, BLANK, *said, *beside], width, height)


def _none(snapshot: Snapshot, width: int) -> list[Line]:
    why = snapshot.engine.live_unavailable_reason or "the host does not say why there are none"
    parts = wrapped(f"{fmt.DASH} {why}", width - 3)
    return [line(label("Dials")), *(line("  ", (part, Tone.NOTICE)) for part in parts)]


def _table(found: dict[str, Dial], desk: Desk, state: State, snapshot: Snapshot, width: int) -> list[Line]:
    on = chosen(desk, state)
    rows = [line((f"{'Dials':<{NAME}}", Tone.LABEL), (f"{'value':>8}{'range':>14}{'start':>8}  set by", Tone.FAINT))]
    rows += [_row(name, dial, name == on, snapshot, width) for name, dial in found.items()]
    if SPECULATIVE_TOKENS not in found:
        why = "this engine drafts no tokens" if snapshot.speculation.method is None else "it cannot be moved here"
        rows.append(line(f"  {SPECULATIVE_TOKENS:<{NAME - 2}}", f"{fmt.DASH:>8}", (f"   {why}", Tone.FAINT)))
    means = MEANS.get(on or "", "")
    dial = found[on] if on is not None else None
    rows.append(line((f"  {means}", Tone.FAINT)))
    if dial is not None and dial.reason:
        parts = wrapped(f"reason: {dial.reason}", width - 3)[:REASON_ROWS]
        rows += [line((f"  {part}", Tone.FAINT)) for part in parts]
    risk = METHODS[METHOD_DIALS].risk
    if not may(state, risk):
        rows.append(line((f"  Read-only: to move one needs {ROLE_NEEDED[risk]}.", Tone.NOTICE)))
    return rows


def _row(name: str, dial: Dial, is_chosen: bool, snapshot: Snapshot, width: int) -> Line:
    shown = dial_name(name)
    extent = f"{fmt.count(dial.low)} to {fmt.count(dial.high)}"
    moved = Tone.STRONG if dial.value != dial.start else Tone.PLAIN
    row = fit(
        line(
            "▸ " if is_chosen else "  ",
            f"{shown:<{NAME - 2}}",
            (f"{fmt.count(dial.value):>8}", moved),
            f"{extent:>14}{fmt.count(dial.start):>8}  ",
            _whose(dial, snapshot),
        ),
        width,
    )
    return tuple((text, Tone.CHOSEN) for text, _ in row) if is_chosen else row


def dial_name(name: str) -> str:
    return clip(fmt.clean(name), NAME - 2)


def _whose(dial: Dial, snapshot: Snapshot) -> str:
    """Who set it, since when, for how long still."""
    if dial.who is None:
        return fmt.DASH
    left = f", {fmt.duration(dial.until - snapshot.at)} left" if dial.until is not None else ""
    since = f" {fmt.clock(dial.since)}" if dial.since is not None else ""
    return f"{clip(fmt.clean(dial.who), 10)}{since}{left}"


def _said(desk: Desk, state: State, width: int) -> list[Line]:
    """The change being made, or what became of the last one."""
    if desk.pending is not None:
        return [*_question(desk.pending, width), BLANK]
    if desk.sending is not None:
        return [line(f"  {change_words(desk.sending)}: waiting until the scheduler has applied it …"), BLANK]
    if told := outcome(desk, width):
        return [*told, BLANK]
    return [BLANK, BLANK] if place(desk, state) != "dials.none" else []


def _question(pending: Pending[int], width: int) -> list[Line]:
    why = wrapped(pending.reason, width - 5) if pending.reason else []
    return [question(change_words(pending)), *(line((f"    {part}", Tone.FAINT)) for part in why)]


def change_words(pending: Pending[int]) -> str:
    back = " (its start)" if pending.is_reset else ""
    change = f"{fmt.count(pending.seen)} → {fmt.count(pending.value)}"
    return f"{dial_name(pending.name)} {change}{back}{lasting(pending.for_s)}"


def _beside(state: State, snapshot: Snapshot, width: int, height: int) -> list[Line]:
    flow, spec, queue = snapshot.throughput, snapshot.speculation, snapshot.queue
    rows = [
        line(
            label("Beside it"),
            "out ",
            (f"{fmt.rate(flow.generation_tokens_per_s):>8}", Tone.STRONG),
            over(flow.window_s),
            f"  run {fmt.count(queue.running)}  wait {fmt.count(queue.waiting)}",
            f"  accepted {fmt.percent(spec.acceptance_rate)}",
            over(spec.window_s),
        ),
        *_effect(comparison(state), state, width),
    ]
    tall = height >= TALL_FROM
    rows += history_chart("out", state.series.get(RATE), width, 6 if tall else 3, None, " /s")
    if spec.method is not None:
        accepted = state.series.get("speculation.acceptance_rate")
        rows += history_chart("accepted", accepted, width, 4 if tall else 2, 1.0)
    return rows


def _effect(found: Comparison | None, state: State, width: int) -> list[Line]:
    """What came of the last move, with both numbers."""
    if found is None:
        return []
    said, tone = effect_words(found)
    offer = " u reverts it." if found.effect is Effect.SLOWER and may(state, METHODS[METHOD_DIALS].risk) else ""
    parts = wrapped(said + offer, width - 5)
    return [
        line(("  ▲ " if tone is Tone.WARN and i == 0 else "    ", tone), (part, tone)) for i, part in enumerate(parts)
    ]


def effect_words(found: Comparison) -> tuple[str, Tone]:
    move = found.move
    who = f" ({clip(fmt.clean(move.who), 16)})" if move.who else ""
    moved = f"{dial_name(move.dial)} {fmt.count(move.before)} → {fmt.count(move.after)} at {fmt.clock(move.at)}{who}: "
    load = f"load {fmt.significant(found.load_before)} → {fmt.significant(found.load_after)} requests"
    numbers = f"out {fmt.rate(found.before)} in the 10 s before, {fmt.rate(found.after)} in the 10 s after"
    share = fmt.percent(abs(found.change)) if found.change is not None else fmt.DASH
    match found.effect:
        case Effect.PENDING:
            return f"{moved}what comes of it is known in {fmt.duration(found.left_s)}", Tone.FAINT
        case Effect.OTHER_DIAL:
            return f"{moved}another dial moved within the same 10 s, so no comparison", Tone.FAINT
        case Effect.OTHER_LOAD:
            return f"{moved}{numbers}, but with another load: {load}; no comparison", Tone.FAINT
        case Effect.UNKNOWN:
            return f"{moved}{numbers}; no comparison", Tone.FAINT
        case Effect.SAME:
            return f"{moved}{numbers}: no difference beyond 10 % ({load})", Tone.PLAIN
        case Effect.FASTER:
            return f"{moved}{numbers}: {share} FASTER ({load})", Tone.GOOD
        case Effect.SLOWER:
            return f"{moved}{numbers}: {share} SLOWER ({load}).", Tone.WARN
