"""Wire types of profiles: what there is, what differs, what a check found."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

from .events import Severity


class Tier(StrEnum):
    """How a change of profile reaches the engine, cheapest first."""

    NONE = "none"
    """Nothing differs."""
    LIVE = "live"
    """Applied to the running engine."""
    STANDBY = "standby"
    """The target engine is resident and asleep: sleep one, wake the other."""
    OVERLAP = "overlap"
    """Both engines fit in memory: start the new one while the old one serves."""
    RELOAD = "reload"
    """Stop the old engine, start the new one."""


class ProfileSummary(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    path: str
    description: str = ""
    """The profile's `description`, one line."""
    digest: str | None = None
    """`None` when the file is refused."""
    is_running: bool = False
    has_changed: bool = False
    """It runs, and its file now has another digest than the running engine was started with."""
    error: str | None = None
    """Why the file is refused."""


class ProfileList(msgspec.Struct, frozen=True, kw_only=True):
    directory: str
    profiles: list[ProfileSummary]
    """By name."""


class ProfileChanges(msgspec.Struct, frozen=True, kw_only=True):
    """How the profiles directory differs from what it was when it was looked at before. Names, sorted."""

    directory: str
    since: float
    """Unix time of that look: the last reload, or the host's start."""
    added: list[str] = []
    removed: list[str] = []
    changed: list[str] = []
    """They mean something else now; also those that were refused and no longer are, and the other way round."""
    broken: dict[str, str] = {}
    """Every file that is refused now, with the reason."""
    text: str
    """The same in a sentence."""


class ProfileDetail(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    path: str
    digest: str
    lineage: list[str]
    """The profile and what it extends, nearest first."""
    effective: dict[str, Any]
    """Tables with everything inherited and filled in."""


class KeyChange(msgspec.Struct, frozen=True, kw_only=True):
    key: str
    """Dotted: `engine.max_num_seqs`."""
    before: Any = None
    """`None`: not set."""
    after: Any = None
    tier: Tier
    """`none`: no switch can carry this change; `note` says what does."""
    note: str = ""


class ProfileDiff(msgspec.Struct, frozen=True, kw_only=True):
    before: str
    after: str
    tier: Tier
    """The lowest that can carry every change, memory aside: `overlap` means overlap or reload; `none` that a switch
    has nothing to do to the engine (there may still be changes that no switch carries)."""
    changes: list[KeyChange]


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that a check found. An ERROR refuses the profile, a WARNING does not."""

    id: str
    """Dotted, stable: `tokenizer.mismatch`, `memory.short`, `option.dead`."""
    severity: Severity
    text: str
    remedy: str = ""


class Preflight(msgspec.Struct, frozen=True, kw_only=True):
    """What can be known of a profile without touching the running engine."""

    profile: str
    digest: str | None = None
    ok: bool
    findings: list[Finding] = []
    needed_bytes: int | None = None
    """Device (or host, on CPU) memory that the engine will take: weights, KV blocks, overhead."""
    available_bytes: int | None = None
    """Free now, what the running engine would give back not counted."""
    kv_capacity_tokens: int | None = None
    longest_tokens: int | None = None
    """The longest request that fits into the KV cache."""
    unchecked: list[str] = []
    """What only the host can check, when this was not made there; else what could not be checked there, and why."""
