"""What a switch would change and cost, as lines: the differing keys with their tiers, the findings, the forecast.

Pure like the rest; used by the profiles screen, `switch --dry-run` and whatever shows a diff.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from console import format as fmt
from console.labels import LABEL, label
from console.lines import BLANK, Line, Tone, cells, line
from console.switch_panels import labelled, phase_row, stretch, unknown, wrapped
from console.words import CHOSEN_TIERS, TIERS, severity_glyph
from engine_host.protocol.events import Severity
from engine_host.protocol.profiles import Finding, KeyChange, Tier
from engine_host.protocol.switching import SwitchForecast

TIER = 9
"""Cells of a tier's column."""


def value(found: Any) -> str:
    """A profile's value as it would be written; TOML and JSON agree on all but tables."""
    if found is None:
        return "not set"
    if isinstance(found, str):
        return fmt.clean(found) or '""'
    return fmt.clean(msgspec.json.encode(found).decode())


def change_lines(changes: Sequence[KeyChange], width: int) -> list[Line]:
    """A row a key: the tier it needs, the key, before and after; values that do not fit go on below it."""
    key_width = min(max((len(fmt.clean(c.key)) for c in changes), default=0), width * 5 // 8)
    rows: list[Line] = []
    for change in changes:
        key, before, after = fmt.clean(change.key), value(change.before), value(change.after)
        lead = line((f"  {change.tier.value:<{TIER}}", tier_tone(change.tier)), f"{key:<{key_width}}")
        whole = line(*lead, "  ", (before, Tone.FAINT), " → ", (after, Tone.STRONG))
        if cells(whole) <= width:
            rows.append(whole)
            continue
        indent = " " * (TIER + 4)
        rows.append(lead)
        rows += [line(indent, (part, Tone.FAINT)) for part in wrapped(before, width - len(indent))]
        rows += [
            line(indent[:-2] + ("→ " if i == 0 else "  "), (part, Tone.STRONG))
            for i, part in enumerate(wrapped(after, width - len(indent)))
        ]
    return rows


def tier_lines(changes: Sequence[KeyChange]) -> list[Line]:
    """What the tiers that occur mean, for somebody who meets the words for the first time."""
    return [
        line((f"  {tier.value:<{TIER}}", tier_tone(tier)), (TIERS[tier], Tone.FAINT))
        for tier in Tier
        if any(c.tier is tier for c in changes)
    ]


def tier_tone(tier: Tier) -> Tone:
    return Tone.WARN if tier in {Tier.RELOAD, Tier.OVERLAP} else Tone.GOOD


def forecast_lines(forecast: SwitchForecast, width: int) -> list[Line]:
    """The verdict and what speaks against it first, then what it costs, then the details."""
    rows = [_verdict(forecast), *finding_lines(forecast.findings, width), BLANK]
    reason = f": {forecast.tier_reason}" if forecast.tier_reason else ""
    rows += labelled("Tier", f"{forecast.tier.value}{reason}", width)
    rows.append(line(" " * LABEL, (CHOSEN_TIERS[forecast.tier], Tone.FAINT)))
    rows += labelled("Takes", _takes(forecast), width)
    rows += labelled("Requests", affected(forecast), width)
    if forecast.phases:
        rows += [BLANK, *_expected_phases(forecast, width)]
    if forecast.changes:
        rows += [BLANK, line(label("Changes"), f"{fmt.many(len(forecast.changes), 'key')}")]
        rows += change_lines(forecast.changes, width)
    return rows


def finding_lines(findings: Sequence[Finding], width: int) -> list[Line]:
    """The gravest first."""
    order = {Severity.ERROR: 0, Severity.WARNING: 1, Severity.INFO: 2}
    rows: list[Line] = []
    for finding in sorted(findings, key=lambda f: order[f.severity]):
        glyph = severity_glyph(finding.severity)
        parts = wrapped(f"{finding.text} ({finding.id})", width - 5)
        rows += [line("  ", glyph if i == 0 else " ", f" {part}") for i, part in enumerate(parts)]
        if finding.remedy:
            rows += [
                line("    ", ("→ " if i == 0 else "  ", Tone.KEY), part)
                for i, part in enumerate(wrapped(finding.remedy, width - 7))
            ]
    return rows


def affected(forecast: SwitchForecast) -> str:
    """What happens to the requests in flight."""
    now = f"{fmt.count(forecast.running)} running, {fmt.count(forecast.waiting)} waiting"
    if forecast.tier in {Tier.NONE, Tier.LIVE}:
        return f"{now}; none of them notices"
    if forecast.running + forecast.waiting == 0:
        return "none in flight; those that come wait at the gate"
    return (
        f"{now}: {fmt.count(forecast.will_carry)} carried over, {fmt.count(forecast.will_drain)} drained, "
        f"{fmt.count(forecast.will_replay)} begun again; new ones wait at the gate"
    )


def _verdict(forecast: SwitchForecast) -> Line:
    errors = sum(f.severity is Severity.ERROR for f in forecast.findings)
    warnings = sum(f.severity is Severity.WARNING for f in forecast.findings)
    counted = [fmt.many(errors, "error")] if errors else []
    counted += [fmt.many(warnings, "warning")] if warnings else []
    told = ", ".join(counted)
    if forecast.not_now is not None and errors == 1:
        return line((" × REFUSED now ", Tone.BAD), " whatever the profile; nothing was touched")
    if not forecast.ok:
        return line((f" × REFUSED by the check{': ' + told if told else ''} ", Tone.BAD), " nothing was touched")
    if forecast.tier is Tier.NONE:
        if forecast.changes:
            return line(("● Nothing that a switch can do: it takes effect when engine-host starts anew", Tone.GOOD))
        return line(("● Nothing to do: nothing differs from what runs", Tone.GOOD))
    if warnings:
        return line((f"▲ It can be done, with {told}", Tone.WARN), ("   nothing was touched", Tone.FAINT))
    return line(("● It can be done", Tone.GOOD), ("   nothing was touched", Tone.FAINT))


def _takes(forecast: SwitchForecast) -> str:
    if forecast.expected_s is None:
        how_long = "not known yet: no such switch was timed here"
    else:
        how_long = f"about {fmt.span(forecast.expected_s)}"
    if forecast.expected_gap_s is not None and forecast.tier is not Tier.NONE:
        how_long += f"; streams pause for about {fmt.span(forecast.expected_gap_s)}"
    return how_long


def _expected_phases(forecast: SwitchForecast, width: int) -> list[Line]:
    """Along the time they will take, one after the other."""
    whole = sum(p.expected_s or 0.0 for p in forecast.phases)
    rows = [line(label("Phases"), ("expected, from earlier switches" if whole else "", Tone.FAINT))]
    begins = 0.0
    for phase in forecast.phases:
        ends = begins + (phase.expected_s or 0.0)
        bar = stretch(begins, ends, whole, width) if phase.expected_s is not None else unknown(width)
        rows.append(phase_row(" ", phase.name, bar, None, phase.expected_s, phase.note))
        begins = ends
    return rows
