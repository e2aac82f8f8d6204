"""The speculation screen as lines: what drafting gives, by window and by position, and which K would give most.

Pure like the overview; everything on it is in the snapshot.
"""

from __future__ import annotations

from collections.abc import Sequence

from console import format as fmt
from console.charts import history_chart
from console.consequence import METHOD_DIALS
from console.dials_desk import SPECULATIVE_TOKENS
from console.frame import Moment, opening, sized
from console.labels import LABEL, WINDOW_NAMES, label, sub
from console.lines import BLANK, Line, Piece, Tone, faded, line
from console.model import State, is_stale, may
from console.switch_panels import wrapped
from engine_host.protocol.methods import METHODS
from engine_host.protocol.snapshot import WINDOWS, Snapshot
from engine_host.protocol.speculation import Choice, Recommendation, Speculation, SpeculationWindow

POSITION = 7
"""Cells of a position's column."""

TALL_FROM = 34
"""Rows from which there is room for the acceptance over time."""


def speculation_page(live: State, moment: Moment, width: int, height: int) -> list[Line]:
    top = opening(live, moment, width, height, keeps=16, without_engine="so nothing is drafted")
    if top.snapshot is None:
        return sized(top.rows, width, height)
    body = _body(top.state, top.snapshot, width, height - len(top.rows))
    return sized([*top.rows, *(faded(body) if is_stale(top.state, top.now) else body)], width, height)


def offer(state: State) -> tuple[str, int, float | None, str] | None:
    """What `apply` would propose: the word for it, K, for how long, and why. None while there is nothing to apply."""
    snapshot = state.snapshot
    advice = snapshot.speculation.recommendation if snapshot is not None else None
    dial = snapshot.dials.get(SPECULATIVE_TOKENS) if snapshot is not None else None
    if advice is None or dial is None:
        return None
    if advice.k is not None and advice.k != dial.value and dial.low <= advice.k <= dial.high:
        return "apply", advice.k, None, fmt.clean(f"recommended: {advice.text}")
    if advice.try_k is not None and advice.try_k != dial.value and dial.low <= advice.try_k <= dial.high:
        for_s = float(min(604_800, max(1, advice.try_s or 60)))
        return "try", advice.try_k, for_s, f"to measure K {advice.try_k}"
    return None


def place(state: State) -> str:
    """As the action table names it: what can be done here."""
    found = offer(state)
    return "speculation" if found is None else f"speculation.{found[0]}"


def _body(state: State, snapshot: Snapshot, width: int, height: int) -> list[Line]:
    spec = snapshot.speculation
    if spec.method is None:
        return [
            line(label("Speculate"), ("off: this profile drafts no tokens", Tone.NOTICE)),
            BLANK,
            *(line("  ", (part, Tone.FAINT)) for part in wrapped(_HOW_TO, width - 3)),
        ]
    windows = _windows(spec)
    rows = [_heading(spec), *_rates(windows), *_positions(windows, width)]
    if height >= TALL_FROM:
        accepted = state.series.get("speculation.acceptance_rate")
        rows += [BLANK, *history_chart("accepted", accepted, width, 4, 1.0), BLANK]
    return [*rows, *_advice(state, spec, width, height - len(rows))]


_HOW_TO = (
    "A profile drafts with [engine.speculative_config]: method and num_speculative_tokens. 5 shows the profiles; "
    "another one is switched to while requests go on."
)


def _heading(spec: Speculation) -> Line:
    return line(
        label("Speculate"),
        fmt.clean(spec.method or fmt.DASH),
        "   K ",
        (fmt.count(spec.k), Tone.STRONG),
        f" of max {fmt.count(spec.k_max)}   speed-up ",
        (fmt.factor(spec.estimated_speedup), Tone.STRONG),
        ("  against K 0", Tone.FAINT),
    )


def _windows(spec: Speculation) -> list[tuple[str, SpeculationWindow]]:
    """By their names on screen, shortest first. A host that gives only one gives it in the part itself."""
    found = [(WINDOW_NAMES[name], spec.windows[name]) for name in WINDOWS if name in spec.windows]
    only = SpeculationWindow(
        acceptance_rate=spec.acceptance_rate,
        mean_acceptance_length=spec.mean_acceptance_length,
        per_position=spec.per_position,
        drafted_per_s=spec.drafted_per_s,
        accepted_per_s=spec.accepted_per_s,
    )
    return found or [(fmt.window(spec.window_s), only)]


def _rates(windows: Sequence[tuple[str, SpeculationWindow]]) -> list[Line]:
    told = f"{'accepted':>10}{'mean length':>14}{'drafted':>12}{'accepted':>12}{'drafts':>10}"
    rows = [line(label(""), (told, Tone.FAINT))]
    for name, window in windows:
        rows.append(
            line(
                sub(name),
                (f"{fmt.percent(window.acceptance_rate):>10}", Tone.STRONG),
                f"{fmt.significant(window.mean_acceptance_length):>14}",
                f"{fmt.rate(window.drafted_per_s):>12}{fmt.rate(window.accepted_per_s):>12}",
                f"{fmt.count(window.drafts):>10}" if window.drafts else f"{'none':>10}",
            )
        )
    return rows


def _positions(windows: Sequence[tuple[str, SpeculationWindow]], width: int) -> list[Line]:
    longest = max((len(window.per_position) for _, window in windows), default=0)
    if longest == 0:
        return [line(label("Position"), ("no draft in any window", Tone.FAINT))]
    room = max(1, (width - LABEL - 5) // POSITION)
    shown = min(longest, room)
    more = f"  +{longest - shown}" if longest > shown else ""
    rows = [line(label("Position"), ("".join(f"{i:>{POSITION}}" for i in range(1, shown + 1)) + more, Tone.FAINT))]
    for name, window in windows:
        cells: list[Piece] = [sub(name)]
        for index in range(shown):
            value = window.per_position[index] if index < len(window.per_position) else None
            text = fmt.DASH if value is None else f"{value * 100:.0f} %"
            cells.append((f"{text:>{POSITION}}", Tone.PLAIN))
        rows.append(line(*cells))
    return rows


def _advice(state: State, spec: Speculation, width: int, room: int) -> list[Line]:
    advice = spec.recommendation
    if advice is None:
        return [line(label("Recommend"), fmt.DASH, ("   the host gives no recommendation", Tone.FAINT))]
    is_better = advice.k is not None and advice.k != spec.k
    parts = wrapped(advice.text, width - LABEL - 1)
    tone = Tone.GOOD if is_better else Tone.PLAIN
    rows = [line(label("Recommend" if i == 0 else ""), (part, tone)) for i, part in enumerate(parts[:4])]
    found = offer(state)
    if found is not None and may(state, METHODS[METHOD_DIALS].risk):
        lasts = f" for {fmt.window(found[2])}" if found[2] is not None else ""
        rows.append(
            line(label(""), ("a", Tone.KEY), f" proposes K {fmt.count(found[1])}{lasts}; asks before it is set")
        )
    elif found is None and SPECULATIVE_TOKENS not in (state.snapshot.dials if state.snapshot is not None else {}):
        rows.append(line(label(""), ("K cannot be moved while this engine runs", Tone.FAINT)))
    if advice.choices:
        rows += _choices(advice, spec, max(0, room - len(rows) - 1))
    return rows


def _choices(advice: Recommendation, spec: Speculation, room: int) -> list[Line]:
    """The table that it rests on; where not all fit, those in force and recommended and around them."""
    now = next((choice.tokens_per_s for choice in advice.choices if choice.k == spec.k), None)
    best = max((choice.tokens_per_s for choice in advice.choices), default=0.0)
    told = f"{'K':>3}{'tokens/step':>12}{'step':>9}{'tokens/s':>9}{'to now':>8}"
    at = f"  a request, at {fmt.many(advice.concurrency, 'request')}" if advice.concurrency is not None else ""
    rows = [line((told, Tone.FAINT), (at, Tone.FAINT))]
    for choice in picked(advice.choices, room, {advice.k, spec.k, advice.try_k}):
        ratio = choice.tokens_per_s / now if now else None
        marks = ["now"] if choice.k == spec.k else []
        marks += ["recommended"] if choice.k == advice.k else ["to be tried"] if choice.k == advice.try_k else []
        tone = Tone.STRONG if choice.k in {advice.k, spec.k} else Tone.PLAIN
        rows.append(
            line(
                (f"{choice.k:>3}{fmt.significant(choice.tokens_per_step):>12}{fmt.latency(choice.step_s):>9}", tone),
                (f"{fmt.si(choice.tokens_per_s):>9}{fmt.factor(ratio):>8}  ", tone),
                (fmt.bar(choice.tokens_per_s / best if best > 0 else None, 8), Tone.BAR),
                ("  measured" if choice.is_measured else "  inferred", Tone.FAINT),
                (f"  {', '.join(marks)}" if marks else "", Tone.GOOD),
            )
        )
    return rows


def picked(choices: Sequence[Choice], room: int, wanted: set[int | None]) -> list[Choice]:
    """At most `room`, by K: those wanted first, then their neighbours."""
    if len(choices) <= room:
        return list(choices)
    anchors = [choice.k for choice in choices if choice.k in wanted] or [0]
    nearest = sorted(choices, key=lambda choice: (min(abs(choice.k - anchor) for anchor in anchors), choice.k))
    kept = {id(choice) for choice in nearest[:room]}
    return [choice for choice in choices if id(choice) in kept]
