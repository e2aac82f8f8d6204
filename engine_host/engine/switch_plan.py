"""How a switch will be done, decided before anything is touched: the tier, and what bounds the carrying of requests.

Pure: profiles and a preflight report in, a plan out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from engine_host.engine.port import Bound
from engine_host.profiles import Profile, diff_profiles
from engine_host.protocol.errors import EXIT_INVALID, OperatorError
from engine_host.protocol.profiles import KeyChange, Preflight, Tier

_SAME_MODEL = (
    *("model", "tokenizer", "revision", "tokenizer_revision", "tokenizer_mode", "skip_tokenizer_init"),
    *("dtype", "quantization", "load_format", "hf_overrides", "hf_config_path", "rope_scaling", "rope_theta"),
)
"""Engine keys that must agree for one engine to go on with another's tokens as if nothing had happened."""

_SAME_TOKENIZER = ("tokenizer", "tokenizer_revision", "tokenizer_mode", "skip_tokenizer_init")
"""Those that decide what tokens a prompt is."""


class Checked(Protocol):
    """What a switch needs of a preflight report (`engine_host.preflight`)."""

    @property
    def wire(self) -> Preflight: ...
    @property
    def fits_beside(self) -> bool | None: ...


@dataclass(frozen=True)
class SwitchPlan:
    tier: Tier
    reason: str
    """Why not a cheaper tier."""
    changes: tuple[KeyChange, ...]
    bound: Bound


def plan_switch(
    before: Profile, after: Profile, checked: Checked, forced: Tier | None, *, has_engine: bool
) -> SwitchPlan:
    """Raises `OperatorError` when the forced tier cannot carry the change."""
    diff = diff_profiles(before, after)
    needed, reason = _cheapest(diff.tier, diff.changes, checked, has_engine=has_engine)
    if forced is not None and forced is not needed:
        _check_forced(forced, needed, reason)
        needed, reason = forced, "asked for"
    return SwitchPlan(needed, reason, tuple(diff.changes), carry_bound(before, after, checked.wire))


def carry_bound(before: Profile, after: Profile, preflight: Preflight) -> Bound:
    """What the new engine must allow for a request to be carried."""
    changed = [key for key in _SAME_MODEL if before.engine.get(key) != after.engine.get(key)]
    limits = [n for n in (preflight.longest_tokens, after.engine.get("max_model_len")) if isinstance(n, int)]
    # Without a tokenizer of its own a profile takes the model's.
    decisive = _SAME_TOKENIZER if before.engine.get("tokenizer") else (*_SAME_TOKENIZER, "model", "revision")
    return Bound(
        reason=f"engine.{changed[0]} changes" if changed else None,
        max_tokens=min(limits, default=None),
        is_same_tokenizer=not set(changed) & set(decisive),
    )


def _cheapest(tier: Tier, changes: list[KeyChange], checked: Checked, *, has_engine: bool) -> tuple[Tier, str]:
    if not has_engine:
        return Tier.RELOAD, "no engine is running"
    if tier is Tier.NONE:
        return tier, "nothing differs"
    if tier is Tier.LIVE:
        return tier, "only settings that apply to a running engine differ"
    keys = [change.key for change in changes if change.tier is not Tier.LIVE]
    differs = f"{keys[0]} and {len(keys) - 1} more need a new engine" if keys[1:] else f"{keys[0]} needs a new engine"
    if tier is Tier.RELOAD:
        return tier, differs
    if checked.fits_beside:
        return Tier.OVERLAP, f"{differs}, and both fit in memory"
    if checked.fits_beside is None:
        return Tier.RELOAD, f"{differs}, and it is not known whether both fit in memory"
    return Tier.RELOAD, f"{differs}, and both do not fit in memory"


_ORDER = (Tier.NONE, Tier.LIVE, Tier.STANDBY, Tier.OVERLAP, Tier.RELOAD)


def _check_forced(forced: Tier, needed: Tier, reason: str) -> None:
    if forced is Tier.STANDBY:
        raise OperatorError("no engine stands by: standby switching is not available", "Leave out --tier.")
    if forced is Tier.NONE or _ORDER.index(forced) < _ORDER.index(needed):
        raise OperatorError(
            f"the tier {forced} cannot carry this change: {reason}",
            f"Leave out --tier, or give --tier {needed}.",
            exit_code=EXIT_INVALID,
        )
