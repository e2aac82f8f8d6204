"""Speculation as the snapshot shows it: what was accepted, and which K to run."""

from __future__ import annotations

import msgspec


class SpeculationWindow(msgspec.Struct, frozen=True, kw_only=True):
    """Acceptance over one window (`10s` `1m` `5m`), terms as in `Speculation`."""

    drafts: int = 0
    """Verified in it, of all requests."""
    acceptance_rate: float | None = None
    mean_acceptance_length: float | None = None
    per_position: list[float | None] = []
    drafted_per_s: float | None = None
    accepted_per_s: float | None = None


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """What one K is expected to give at the concurrency of now."""

    k: int
    tokens_per_step: float
    """A request, the bonus token included."""
    step_s: float
    is_measured: bool
    """The step time was measured at this K; else it lies on the line through those that were."""
    tokens_per_s: float
    """A request."""


class Recommendation(msgspec.Struct, frozen=True, kw_only=True):
    """Which K to run, and the numbers that it rests on."""

    k: int | None = None
    """None: not enough is known; `text` says what is missing."""
    text: str
    concurrency: int | None = None
    """Requests in a step, that it holds for."""
    gain: float | None = None
    """Tokens per second against the K in force: 1.2 is a fifth more."""
    choices: list[Choice] = []
    """By K, from 0."""
    try_k: int | None = None
    """A K to run for `try_s` seconds, because more can be said once it is measured; `text` asks for it."""
    try_s: int | None = None


class Speculation(msgspec.Struct, frozen=True, kw_only=True):
    """Acceptance over `window_s`; all `None` without speculation or without a draft in the window."""

    window_s: float | None = None
    method: str | None = None
    """vLLM's name of the speculation method; `None` when it is off."""
    acceptance_rate: float | None = None
    """accepted / drafted tokens."""
    mean_acceptance_length: float | None = None
    """1 + accepted / drafts: tokens a verification step yields, the bonus token included."""
    per_position: list[float | None] = []
    """accepted[i] / drafts that reached position i, that is, all drafts that long: not only those kept so far."""
    k: int | None = None
    """Tokens drafted a request and step now: the dial's, or less by the profile's own schedule."""
    k_max: int | None = None
    """What the engine was started with."""
    drafted_per_s: float | None = None
    accepted_per_s: float | None = None
    estimated_speedup: float | None = None
    """Tokens per second against K = 0, from measured step times."""
    windows: dict[str, SpeculationWindow] = {}
    recommendation: Recommendation | None = None
    drafts_total: int = 0
    drafted_total: int = 0
    accepted_total: int = 0
