"""On which terms a switch is asked for: its tier and its drain time, each left to the host unless set.

What `switch --tier` and `--drain` are on the command line, for a dialog.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from engine_host.protocol.methods import DrainSeconds
from engine_host.protocol.profiles import Tier


@dataclass(frozen=True, slots=True)
class Terms:
    tier: Tier | None = None
    """`None`: the cheapest that works."""
    drain_s: float | None = None
    """`None`: the running profile's own."""


def tiers(cheapest: Tier) -> list[Tier | None]:
    """What can be asked for: the host's own choice, then those that cost more. It refuses all others."""
    dearer = list(Tier)[list(Tier).index(cheapest) + 1 :]
    return [None, *(tier for tier in dearer if tier is not Tier.STANDBY)]


def after(tier: Tier | None, cheapest: Tier) -> Tier | None:
    """The next of `tiers`, the first one after the last."""
    possible = tiers(cheapest)
    return possible[(possible.index(tier) + 1) % len(possible)]


def tier_text(tier: Tier | None, cheapest: Tier) -> str:
    if tier is not None:
        return f"{tier.value}, forced"
    return f"{cheapest.value}, as the host chooses" + ("" if len(tiers(cheapest)) > 1 else "; no other works")


def drain_seconds(text: str) -> float | None:
    """Of what was typed; empty means None. Raises `ValueError` with the reason."""
    if not text.strip():
        return None
    try:
        return msgspec.convert(text.strip(), DrainSeconds, strict=False)
    except msgspec.ValidationError:
        raise ValueError("not a number from 0 to 86,400") from None
