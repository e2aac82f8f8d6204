"""A switch in words: why it was refused, what it did, what it left out."""

from __future__ import annotations

import json
from collections.abc import Sequence

from engine_host.engine.carriage import Carriage
from engine_host.profiles import Profile
from engine_host.profiles.diff import lost_names
from engine_host.protocol.events import Severity
from engine_host.protocol.profiles import Finding, KeyChange, Preflight, Tier


def refused(profile: Profile, preflight: Preflight) -> str:
    errors = [finding.text for finding in preflight.findings if finding.severity is Severity.ERROR]
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return f"{profile.name} cannot run here, nothing was touched: {errors[0] if errors else 'see its check'}{more}"


def switched(before: Profile, after: Profile, tier: Tier, took_s: float, requests: Carriage) -> str:
    streams = requests.carried + requests.replayed
    gap = f", gap {requests.gap_s:.2f} s" if requests.gap_s is not None else ""
    told = [
        f"switched {before.name} -> {after.name} in {took_s:.1f} s",
        "nobody noticed" if tier in (Tier.NONE, Tier.LIVE) else "",
        f"{requests.cut_off} cut off" if requests.cut_off else "",
        f"{streams} streams carried{gap}" if streams else "",
    ]
    return ", ".join(part for part in told if part)


def about_names(before: Profile, after: Profile) -> list[Finding]:
    """Clients are carried over a switch, but the name that they ask for next time may be gone."""
    if not (lost := lost_names(before, after)):
        return []
    keep = json.dumps([*after.names_asked_for, *lost])
    return [
        Finding(
            id="names.lost",
            severity=Severity.WARNING,
            text=f"clients that ask for {', '.join(lost)} get 404 after the switch: {after.name} serves "
            f"{', '.join(after.names_asked_for)}",
            remedy=f"tell them, or keep the name: [engine] served_model_name = {keep}",
        )
    ]


def about_limits(stays: Sequence[str], ends: Sequence[str]) -> list[Finding]:
    """What operators have set at the gate stays, whatever the next profile says, as far as it can."""
    found = []
    if ends:
        found.append(
            Finding(
                id="throttle.ends",
                severity=Severity.WARNING,
                text=f"set by hand at the gate, and ends with the switch: {'; '.join(ends)}",
                remedy="set it anew after the switch, with a class that there is then: vllm-console throttle set",
            )
        )
    if stays:
        found.append(
            Finding(
                id="throttle.by_hand",
                severity=Severity.INFO,
                text=f"set by hand at the gate, and stays over the switch: {'; '.join(stays)}",
                remedy="take it back with: vllm-console throttle clear",
            )
        )
    return found


def left_out(changes: Sequence[KeyChange]) -> str:
    """What no switch can carry."""
    kept = [change for change in changes if change.tier is Tier.NONE]
    return f"; {', '.join(change.key for change in kept)} not yet: {kept[0].note}" if kept else ""
