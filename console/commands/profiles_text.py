"""What the `profiles` commands say to a person: lists, values, differences, findings, as lines.

Pure functions of the wire types, so that a host's answer and a local one look the same. Part of it may be a host's own
words: control characters are taken out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from console import format as fmt
from console.lines import BLANK, Line, Piece, Tone, clip, line
from engine_host.profiles.shape import SCHEMA
from engine_host.profiles.toml_text import as_toml
from engine_host.protocol.events import Severity
from engine_host.protocol.profiles import (
    Finding,
    KeyChange,
    Preflight,
    ProfileChanges,
    ProfileDetail,
    ProfileDiff,
    ProfileList,
    Tier,
)

TIER_WORDS: dict[Tier, str] = {
    Tier.NONE: "nothing to do to the engine",
    Tier.LIVE: "live: at the next scheduler step",
    Tier.STANDBY: "standby: the other engine is asleep beside it",
    Tier.OVERLAP: "overlap if both engines fit in memory, else reload",
    Tier.RELOAD: "reload: stop the engine, start the other",
}

_SEVERITIES: dict[Severity, Piece] = {
    Severity.ERROR: ("✗ error  ", Tone.BAD),
    Severity.WARNING: ("▲ warning", Tone.WARN),
    Severity.INFO: ("· note   ", Tone.FAINT),
}

_WIDEST_VALUE = 48


def list_lines(found: ProfileList, width: int) -> list[Line]:
    if not found.profiles:
        return [line(f"no profiles in {fmt.clean(found.directory)}")]
    names = max(len(fmt.clean(one.name)) for one in found.profiles)
    rows = []
    for one in found.profiles:
        name, room = f"{fmt.clean(one.name):<{names}}", max(20, width - names - 18)
        if one.error is not None:
            # Whole, even if it wraps: the reason is what somebody looks for. Its file stands in front already.
            said: Piece = (f"✗ refused: {fmt.clean(one.error.removeprefix(f'{one.path}: '))}", Tone.WARN)
        elif one.is_running:
            changed = ", ▲ its file has changed since" if one.has_changed else ""
            said = (clip(f"● running{changed}   {fmt.clean(one.description)}", room), Tone.STRONG)
        else:
            said = (clip(fmt.clean(one.description), room), Tone.PLAIN)
        rows.append(line((name, Tone.STRONG), "  ", (f"{one.digest or fmt.DASH:<12}", Tone.FAINT), "  ", said))
    return rows


def reload_lines(found: ProfileChanges) -> list[Line]:
    rows = [line(fmt.clean(found.text))]
    for name, why in found.broken.items():
        rows.append(line("  ", (f"✗ {fmt.clean(name)}: {fmt.clean(why)}", Tone.WARN)))
    return rows


def detail_lines(detail: ProfileDetail) -> list[Line]:
    """TOML, so that it can be read, compared and saved like any profile."""
    lineage = " -> ".join(fmt.clean(name) for name in detail.lineage)
    head = [f"# {fmt.clean(detail.name)} ({fmt.clean(detail.digest)}), {fmt.clean(detail.path)}"]
    if len(detail.lineage) > 1:
        head.append(f"# extends: {lineage}")
    filled = {name: _said(name, table) for name, table in detail.effective.items() if table}
    body = as_toml({"schema": SCHEMA, **filled}).splitlines()
    return [*(line((row, Tone.FAINT)) for row in head), *(line(fmt.clean(row)) for row in body)]


def _said(name: str, table: Mapping[str, Any]) -> dict[str, Any]:
    """Without what is not set: TOML has no null, and in the tables of the host's own a key left out is the same."""
    if name in ("engine", "server"):
        return dict(table)
    said = {key: value for key, value in table.items() if value is not None}
    return {key: _said(key, value) if isinstance(value, Mapping) else value for key, value in said.items()}


def diff_lines(diff: ProfileDiff, width: int) -> list[Line]:
    head = f"{fmt.clean(diff.before)} -> {fmt.clean(diff.after)}: "
    if not diff.changes:
        return [line((head, Tone.STRONG), "no difference")]
    rows = [line((head, Tone.STRONG), TIER_WORDS[diff.tier]), BLANK]
    keys = max(len(fmt.clean(change.key)) for change in diff.changes)
    befores = max(len(_value(change.before)) for change in diff.changes)
    afters = max(len(_value(change.after)) for change in diff.changes)
    return rows + [_change(change, keys, befores, afters) for change in diff.changes]


def check_lines(result: Preflight, *, is_from_host: bool = False) -> list[Line]:
    """`is_from_host`: made there, so that what is unchecked could not be checked there either."""
    name = fmt.clean(result.profile)
    if result.digest:
        name += f" ({fmt.clean(result.digest)})"
    verdict: Piece = ("✓ nothing wrong", Tone.GOOD) if not result.findings else ("✓ valid", Tone.GOOD)
    if not result.ok:
        verdict = ("✗ invalid", Tone.BAD)
    rows = [line((f"{name}: ", Tone.STRONG), verdict)]
    for found in result.findings:
        rows += _finding(found)
    if result.longest_tokens is not None:
        rows.append(line(f"  the longest request that fits has {fmt.count(result.longest_tokens)} tokens"))
    if result.unchecked:
        head = "not checked:" if is_from_host else "only the host can check (--on-host):"
        rows.append(line((f"  {head}", Tone.FAINT)))
        rows += [line((f"    {fmt.clean(what)}", Tone.FAINT)) for what in result.unchecked]
    return rows


def _change(change: KeyChange, keys: int, befores: int, afters: int) -> Line:
    note = f"   {fmt.clean(change.note)}" if change.note else ""
    tier = "no switch" if change.tier is Tier.NONE else change.tier.value
    return line(
        f"  {fmt.clean(change.key):<{keys}}  {_value(change.before):>{befores}} -> ",
        (f"{_value(change.after):<{afters}}", Tone.STRONG),
        f"  {tier}",
        (note, Tone.FAINT),
    )


def _finding(found: Finding) -> list[Line]:
    rows = [line("  ", _SEVERITIES[found.severity], f"  {fmt.clean(found.text)}")]
    return [*rows, line(f"             {fmt.clean(found.remedy)}")] if found.remedy else rows


def _value(value: Any) -> str:
    if value is None:
        return fmt.DASH
    return clip(fmt.clean(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)), _WIDEST_VALUE)
