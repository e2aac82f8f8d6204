"""Wire types of the hot switch: forecast, progress, result, and the timeline of its phases."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from .profiles import Finding, KeyChange, Tier


class PhaseName(StrEnum):
    """In the order of a reload; an overlap starts, probes and warms before it holds and carries."""

    PREFLIGHT = "preflight"
    PREPARE = "prepare"
    """Of a reload's start, what takes nothing of the device: the old engine serves meanwhile."""
    HOLD = "hold"
    CARRY = "carry"
    STOP = "stop"
    START = "start"
    PROBE = "probe"
    WARM = "warm"
    """Computing ahead what will be carried."""
    RELEASE = "release"
    ROLLBACK = "rollback"


class SwitchPhase(msgspec.Struct, frozen=True, kw_only=True):
    name: PhaseName
    at_s: float
    """Since the switch began."""
    took_s: float | None = None
    """`None` while under way."""
    expected_s: float | None = None
    """From earlier switches; `None` without one."""
    note: str = ""
    """What it did, in words: "carried 37, drained 2"."""


class SwitchProgress(msgspec.Struct, frozen=True, kw_only=True):
    """A switch under way."""

    from_profile: str
    to_profile: str
    tier: Tier
    who: str
    since: float
    """Unix time."""
    elapsed_s: float
    expected_s: float | None = None
    phases: list[SwitchPhase] = []
    """Done and current, in order."""
    can_cancel: bool = False
    died: str | None = None
    """Why the former engine has died meanwhile; new requests wait at the gate since then."""


class Outcome(StrEnum):
    SWITCHED = "switched"
    UNCHANGED = "unchanged"
    """The profile runs already and nothing differs."""
    REFUSED = "refused"
    """The preflight found an error; nothing was touched."""
    ROLLED_BACK = "rolled_back"
    CANCELLED = "cancelled"
    FAILED = "failed"
    """Not even the former profile could be brought back; the host goes on trying."""


class SwitchResult(msgspec.Struct, frozen=True, kw_only=True):
    outcome: Outcome
    text: str
    """One sentence for a person, with the engine's own reason when it failed."""
    from_profile: str
    to_profile: str
    tier: Tier
    who: str = "host"
    at: float
    """Unix time of its beginning."""
    took_s: float
    gap_s: float | None = None
    """How long no engine produced tokens for carried streams."""
    carried: int = 0
    drained: int = 0
    replayed: int = 0
    cut_off: int = 0
    """Could not go on in the new engine and ended with an error at the end of the drain time."""
    held: int = 0
    """Requests that arrived during the switch and waited at the gate."""
    limits: list[str] = []
    """What became of the limits at the gate, a sentence each: what another profile says, what was set by hand and stays
    or has ended."""
    phases: list[SwitchPhase] = []
    lines: list[str] = []
    """The engine's own last error lines, when it failed."""


NOT_NOW = "switch.not_now"
"""The finding that says that the host would refuse any switch at this moment, and why."""


class SwitchForecast(msgspec.Struct, frozen=True, kw_only=True):
    """What `--dry-run` tells: nothing was touched."""

    from_profile: str
    to_profile: str
    tier: Tier
    tier_reason: str
    """Why not a cheaper one: "engine.max_model_len differs"; "both engines need 30 GiB, 12 are free"."""
    ok: bool
    """False where the switch would be refused: by the check, or by the host's state (the finding `NOT_NOW`)."""
    findings: list[Finding] = []
    changes: list[KeyChange] = []
    phases: list[SwitchPhase] = []
    """With `expected_s` where earlier switches tell."""
    expected_s: float | None = None
    expected_gap_s: float | None = None
    running: int = 0
    waiting: int = 0
    will_carry: int = 0
    will_drain: int = 0
    """Requests in flight that cannot be carried and get the drain time."""
    will_replay: int = 0

    @property
    def not_now(self) -> Finding | None:
        """What stands against any switch at this moment."""
        return next((finding for finding in self.findings if finding.id == NOT_NOW), None)


class SwitchStatus(msgspec.Struct, frozen=True, kw_only=True):
    active: SwitchProgress | None = None
    last: SwitchResult | None = None
