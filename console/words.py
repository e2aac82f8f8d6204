"""States and severities as word, glyph and tone; the same on every screen and in `status`.

Every glyph is one cell wide in common terminal fonts and none is an emoji, so columns keep their place.
"""

from __future__ import annotations

from console.lines import Piece, Tone
from engine_host.protocol.events import Severity
from engine_host.protocol.methods import Risk, Role
from engine_host.protocol.profiles import Tier
from engine_host.protocol.snapshot import Snapshot, State
from engine_host.protocol.switching import Outcome

_STATES: dict[State, tuple[str, Tone]] = {
    State.STARTING: ("◌", Tone.NOTICE),
    State.SERVING: ("●", Tone.GOOD),
    State.PAUSED: ("◦", Tone.WARN),
    State.SWITCHING: ("↔", Tone.WARN),
    State.DRAINING: ("▽", Tone.WARN),
    State.RECOVERING: ("↻", Tone.WARN),
    State.DEAD: ("×", Tone.BAD),
}

_SEVERITIES: dict[Severity, tuple[str, Tone]] = {
    Severity.INFO: ("·", Tone.PLAIN),
    Severity.WARNING: ("▲", Tone.WARN),
    Severity.ERROR: ("×", Tone.BAD),
}

ROLES: dict[Role, str] = {
    Role.VIEWER: "viewer (read-only)",
    Role.OPERATOR: "operator",
    Role.ADMIN: "admin",
}

ROLE_NEEDED: dict[Risk, str] = {
    Risk.READ: "any role",
    Risk.OPERATE: "the operator role",
    Risk.DANGEROUS: "the admin role",
}

TIERS: dict[Tier, str] = {
    Tier.NONE: "nothing differs",
    Tier.LIVE: "applied to the running engine; nobody notices",
    Tier.STANDBY: "a second engine, loaded and asleep, is woken: about a second",
    Tier.OVERLAP: "a new engine starts beside this one if memory allows, else as reload",
    Tier.RELOAD: "the engine is stopped and started anew; streams pause meanwhile",
}

CHOSEN_TIERS: dict[Tier, str] = {
    **TIERS,
    Tier.OVERLAP: "a new engine starts beside this one, then takes over",
}
"""Where the host has looked at the memory and decided."""

_OUTCOMES: dict[Outcome, tuple[str, Tone]] = {
    Outcome.SWITCHED: ("● SWITCHED", Tone.GOOD),
    Outcome.UNCHANGED: ("● UNCHANGED", Tone.GOOD),
    Outcome.REFUSED: ("▲ REFUSED", Tone.WARN),
    Outcome.ROLLED_BACK: ("▲ ROLLED BACK", Tone.WARN),
    Outcome.CANCELLED: ("▲ CANCELLED", Tone.WARN),
    Outcome.FAILED: (" × FAILED ", Tone.BAD),
}


def outcome_word(outcome: Outcome) -> Piece:
    return _OUTCOMES[outcome]


def state_word(state: State) -> Piece:
    glyph, tone = _STATES[state]
    word = f"{glyph} {state.upper()}"
    return (f" {word} " if tone is Tone.BAD else word), tone


def severity_glyph(severity: Severity) -> Piece:
    return _SEVERITIES[severity]


def trouble(snapshot: Snapshot) -> str | None:
    """A serving engine that does no work, named and explained; None when nothing is wrong."""
    queue = snapshot.queue
    if not queue.stalled:
        return None
    since = snapshot.engine.last_step_age_s
    for_how_long = f" for {since:.0f} s" if since is not None else ""
    match queue.stalled_reason:
        case "hung":
            return f"HUNG: requests run, no token{for_how_long}"
        case "stuck":
            return f"STUCK: requests wait, none runs{for_how_long}"
        case other:
            return f"STALLED{for_how_long}" + (f": {other}" if other else "")
