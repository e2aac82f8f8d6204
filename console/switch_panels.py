"""A hot switch as lines: its phases under way, on a page, in the overview and on one line, and its result.

Pure functions from wire types to lines, painted by the TUI and printed by `vllm-console switch`. Times are the host's
own; nothing here looks at a clock.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence

from console import format as fmt
from console.labels import LABEL, label
from console.lines import BLANK, Line, Piece, Tone, cells, clip, line
from console.words import outcome_word
from engine_host.protocol.profiles import Tier
from engine_host.protocol.snapshot import Snapshot
from engine_host.protocol.switching import (
    Outcome,
    PhaseName,
    SwitchPhase,
    SwitchProgress,
    SwitchResult,
)

_DEATH_ROWS = 3
"""Rows at most that tell of the death of the old engine; its reason may be a whole message of vLLM."""
STARTING = frozenset({PhaseName.PREPARE, PhaseName.START})
"""Phases in which an engine starts, which says what it does."""
ENGINE_LINES = 9
"""Rows of the engine's own output at most."""


def way(before: str, after: str, width: int) -> str:
    """`latency → throughput` in at most `width` cells, both names in sight however long they are."""
    before, after = fmt.clean(before), fmt.clean(after)
    half = max(4, (width - 3) // 2)
    if cells(line(f"{before} → {after}")) > width:
        before, after = clip(before, half), clip(after, half)
    return f"{before} → {after}"


def wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(fmt.clean(text), max(20, width)) or [""]


def labelled(name: str, text: str, width: int, tone: Tone = Tone.PLAIN) -> list[Line]:
    """A label and as many lines of text as it takes."""
    parts = wrapped(text, width - LABEL - 1)
    return [line(label(name) if i == 0 else (" " * LABEL, Tone.PLAIN), (part, tone)) for i, part in enumerate(parts)]


def progress_lines(
    progress: SwitchProgress, width: int, *, doing: str | None = None, to_come: Sequence[SwitchPhase] = ()
) -> list[Line]:
    """`doing`: what the engine says it does while it starts. `to_come`: phases of the forecast, where it is known."""
    head = line(
        (way(progress.from_profile, progress.to_profile, width - 40), Tone.STRONG),
        _by_tier(progress.tier, progress.phases),
        (f"   by {fmt.clean(progress.who)} since {fmt.clock(progress.since)}", Tone.FAINT),
    )
    rows = [
        head,
        *_death(progress, width),
        BLANK,
        line(label("In all"), *_gauge(progress.elapsed_s, progress.expected_s, width)),
        BLANK,
    ]
    cells_ = bar_width(width)
    for phase in progress.phases:
        if phase.took_s is not None:
            bar = fmt.bar(1.0, cells_)
            rows.append(phase_row("✓", phase.name, bar, phase.took_s, phase.expected_s, phase.note))
            continue
        spent = max(0.0, progress.elapsed_s - phase.at_s)
        bar = fmt.bar(spent / phase.expected_s if phase.expected_s else None, cells_)
        rows.append(phase_row("▸", phase.name, bar, spent, phase.expected_s, doing or phase.note))
    begun = {phase.name for phase in progress.phases}
    if PhaseName.ROLLBACK not in begun:
        rows += [
            phase_row(" ", p.name, fmt.bar(0.0, cells_), None, p.expected_s, "", Tone.FAINT)
            for p in to_come
            if p.name not in begun
        ]
    return rows


def _by_tier(tier: Tier, phases: Sequence[SwitchPhase]) -> str:
    """The host chooses the tier by what its check finds; until then it has only a guess to tell."""
    is_decided = any(phase.name is not PhaseName.PREFLIGHT for phase in phases)
    return f"   {tier.value}" if is_decided else ""


def switching_block(snapshot: Snapshot, progress: SwitchProgress, width: int) -> list[Line]:
    """Three lines for the overview of everybody, also of those who did not start it; more when the old engine died."""
    held = snapshot.queue.held
    phase = current_phase(progress)
    doing = ""
    if phase is not None:
        word = snapshot.engine.phase if phase.name in STARTING and snapshot.engine.phase else phase.note
        spent = max(0.0, progress.elapsed_s - phase.at_s)
        doing = f"{phase.name.value}{': ' + fmt.clean(word) if word else ''}   {_of(spent, phase.expected_s)}"
    return [
        line(
            ("Switching  ", Tone.LABEL),
            (way(progress.from_profile, progress.to_profile, width - 50), Tone.STRONG),
            _by_tier(progress.tier, progress.phases),
            (f"   by {fmt.clean(progress.who)} since {fmt.clock(progress.since)}", Tone.FAINT),
        ),
        *_death(progress, width),
        line(" " * LABEL, *_gauge(progress.elapsed_s, progress.expected_s, width)),
        line(" " * LABEL, doing, (f"   {fmt.count(held)} wait at the gate" if held else "", Tone.NOTICE)),
    ]


def _death(progress: SwitchProgress, width: int) -> list[Line]:
    """Of the old engine, with what became of the requests."""
    if progress.died is None:
        return []
    text = f"the engine of {progress.from_profile} has died, new requests wait for the next one: {progress.died}"
    return [line(" " * LABEL, (part, Tone.BAD)) for part in wrapped(text, width - LABEL - 1)[:_DEATH_ROWS]]


def live_line(progress: SwitchProgress, width: int) -> str:
    """The progress on one line of a terminal."""
    phase = current_phase(progress)
    share = progress.elapsed_s / progress.expected_s if progress.expected_s else None
    parts = [
        way(progress.from_profile, progress.to_profile, max(20, width // 3)),
        fmt.bar(share, 12),
        _of(progress.elapsed_s, progress.expected_s),
    ]
    if phase is not None:
        expected = f" of {fmt.span(phase.expected_s)}" if phase.expected_s is not None else ""
        parts.append(f"{phase.name.value} {fmt.duration(progress.elapsed_s - phase.at_s)}{expected}")
    return clip("  ".join(parts), width)


def current_phase(progress: SwitchProgress) -> SwitchPhase | None:
    under_way = [p for p in progress.phases if p.took_s is None]
    return under_way[-1] if under_way else None


def _of(spent_s: float, expected_s: float | None) -> str:
    if expected_s is None:
        return fmt.duration(spent_s)
    if spent_s > max(1.0, expected_s):
        return f"{fmt.duration(spent_s)}, longer than the expected {fmt.span(expected_s)}"
    return f"{fmt.duration(spent_s)} of about {fmt.span(expected_s)}"


def _gauge(spent_s: float, expected_s: float | None, width: int) -> list[Piece]:
    share = spent_s / expected_s if expected_s else None
    told = _of(spent_s, expected_s) + ("; no such switch was timed yet" if expected_s is None else "")
    late = expected_s is not None and spent_s > max(1.0, expected_s)
    return [
        (fmt.bar(share, max(10, min(40, width - 55))), Tone.BAR),
        (f"  {told}", Tone.WARN if late else Tone.PLAIN),
    ]


def result_lines(result: SwitchResult, width: int) -> list[Line]:
    word, tone = outcome_word(result.outcome)
    ended = "in" if result.outcome in {Outcome.SWITCHED, Outcome.UNCHANGED} else "after"
    rows = [
        line((word, tone), f"  {way(result.from_profile, result.to_profile, width - 40)}"),
        line(
            (
                f"  {ended} {fmt.span(result.took_s)}{_by_tier(result.tier, result.phases)}"
                f"   by {fmt.clean(result.who)} at {fmt.clock(result.at)}",
                Tone.FAINT,
            )
        ),
        *(line("  ", (part, Tone.STRONG)) for part in wrapped(result.text, width - 3)),
    ]
    said = [text for text in (fmt.clean(t).rstrip() for t in result.lines) if text]
    if said:
        # From the end: an engine says what broke it in its last line.
        words = [part for text in said for part in wrapped(text, width - 5)][-ENGINE_LINES:]
        rows += [line(("  The engine's last error lines:", Tone.FAINT))]
        rows += [line(("  │ ", Tone.FAINT), text) for text in words]
    if result.outcome is not Outcome.UNCHANGED:
        tone = Tone.WARN if result.cut_off else Tone.PLAIN
        rows += [BLANK, *labelled("Requests", _what_became(result), width, tone)]
    for at, text in enumerate(result.limits):
        rows += labelled("Limits" if at == 0 else "", text, width)
    if result.phases:
        rows += [BLANK, line(label("Phases"))]
    worked = result.outcome in {Outcome.SWITCHED, Outcome.UNCHANGED}
    forward = [phase for phase in result.phases if phase.name is not PhaseName.ROLLBACK]
    for phase in result.phases:
        # What it broke off in is the last phase on the way there.
        failed = phase.took_s is None or (not worked and phase in forward[-1:])
        took_s = phase.took_s or 0.0
        bar = stretch(phase.at_s, phase.at_s + took_s, result.took_s, width)
        glyph = "×" if failed else "✓"
        rows.append(phase_row(glyph, phase.name, bar, phase.took_s, phase.expected_s, phase.note))
    return rows


def _what_became(result: SwitchResult) -> str:
    pause = f"streams paused for {fmt.span(result.gap_s)}; " if result.gap_s is not None else ""
    cut_off = f"{fmt.count(result.cut_off)} cut off by the drain time, " if result.cut_off else ""
    return (
        f"{pause}{cut_off}{fmt.count(result.carried)} carried over, {fmt.count(result.drained)} drained, "
        f"{fmt.count(result.replayed)} begun again, {fmt.count(result.held)} waited at the gate"
    )


def phase_row(
    glyph: str,
    name: PhaseName,
    bar: str,
    took_s: float | None,
    expected_s: float | None,
    note: str,
    tone: Tone = Tone.PLAIN,
) -> Line:
    """A phase: its bar, how long it took of how long was expected, what it did. Before it began: only the latter."""
    late = took_s is not None and expected_s is not None and took_s > max(1.0, expected_s)
    if took_s is None:
        times = [(f"{fmt.span(expected_s):>9}" + " " * 12, Tone.FAINT)]
    else:
        expected = f" of {fmt.span(expected_s)}" if expected_s is not None else ""
        times = [(f"{fmt.span(took_s):>9}", Tone.WARN if late else tone), (f"{expected:<12}", Tone.FAINT)]
    return line(
        (f"  {glyph} {name.value:<{LABEL}}", Tone.STRONG if glyph == "▸" else tone),
        (bar, Tone.BAR if tone is Tone.PLAIN else tone),
        *times,
        (f" {fmt.clean(note)}" if note else "", tone),
    )


def bar_width(width: int) -> int:
    return max(10, min(30, width - 70))


def stretch(begins: float, ends: float, whole: float, width: int) -> str:
    """Where a phase lies within the whole; however short it is, it shows."""
    room = bar_width(width)
    if not (math.isfinite(begins) and math.isfinite(ends) and whole > 0):
        return unknown(width)
    first = min(room - 1, max(0, int(max(0.0, min(1.0, begins / whole)) * room)))
    last = min(room, max(first + 1, math.ceil(max(0.0, min(1.0, ends / whole)) * room - 0.25)))
    return "░" * first + "█" * (last - first) + "░" * (room - last)


def unknown(width: int) -> str:
    return "·" * bar_width(width)
