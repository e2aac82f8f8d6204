"""The throttle on the wire: limits at the gate, who set them and until when, and what the gate has done.

A limit has three layers, and the youngest that holds is in force: what the profile says, what an operator set (which
may end by itself, and then the former one returns), and, for the cap on requests in flight alone, what the automatic
controller chose. An operator's cap always wins over the controller's.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec

from .snapshot import Percentiles

AUTO = "auto"
"""Who sets what the controller chooses, and the name of its mode where limits are named."""

LimitValue = bool | int | float | str | None
"""`None`: no such limit."""


class LimitName(StrEnum):
    """What the gate can be told. The order is the one of screens."""

    MAX_INFLIGHT = "max_inflight"
    """Choices in flight: a request with `n` = 4 counts as four."""
    REQUEST_RATE = "request_rate"
    """Choices a second."""
    REQUEST_BURST = "request_burst"
    """Choices that may come at once before `request_rate` counts."""
    PROMPT_TOKEN_RATE = "prompt_token_rate"
    """Prompt tokens a second."""
    PROMPT_TOKEN_BURST = "prompt_token_burst"
    HOLD_QUEUE = "hold_queue"
    """Requests that may wait at the gate; 0: none waits, what is over a limit is refused at once."""
    HOLD_DEADLINE_S = "hold_deadline_s"
    """Seconds after which a request that waits is refused."""
    MIN_CLASS = "min_class"
    """Requests of a lower priority class are refused."""
    PAUSED = "paused"
    """Every request waits, within `hold_queue` and `hold_deadline_s`."""
    DRAINING = "draining"
    """Every new request is refused with 503; those in flight go on."""


class AutoMode(StrEnum):
    OFF = "off"
    OBSERVE = "observe"
    """Says what it would do."""
    ON = "on"


class Former(msgspec.Struct, frozen=True, kw_only=True):
    """What a setting was made over, and what returns when it ends."""

    value: LimitValue
    who: str | None = None
    """Who set it; None: it stands where the profile puts it."""
    reason: str = ""
    until: float | None = None
    """Unix time; None: it stays."""


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """One limit as it is in force."""

    value: LimitValue
    profile: LimitValue
    """What it returns to when it is cleared."""
    who: str | None = None
    """Who set it; `auto` for the controller; None while it stands where the profile put it."""
    reason: str = ""
    since: float | None = None
    """Unix time."""
    until: float | None = None
    """Unix time at which the former value returns; None: it stays."""
    then: Former | None = None
    """What returns at `until`."""


class ClassCount(msgspec.Struct, frozen=True, kw_only=True):
    """One priority class since the host started."""

    name: str
    held: int = 0
    """Waiting at the gate now."""
    admitted_total: int = 0
    refused_total: int = 0


class GateCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Since the host started. What vLLM refuses by itself is not among them."""

    inflight: int = 0
    """Choices that the engine works on now."""
    held: int = 0
    oldest_held_s: float | None = None
    admitted_total: int = 0
    """Let in; those of them that a switch then turns away are counted as refused too."""
    held_total: int = 0
    """Of those admitted, refused or gone: how many had to wait."""
    gone_total: int = 0
    """Clients that hung up while they waited."""
    refused_total: int = 0
    refused_by_reason: dict[str, int] = {}
    """`queue_full` `deadline` `shed` `class` `too_long` `too_large` `too_deep` `draining`, and the states of the host
    in which no engine answers."""
    truncated_total: int = 0
    segmented_total: int = 0
    hold_wait: dict[str, Percentiles] = {}
    """By window; of those that waited and were admitted."""
    classes: list[ClassCount] = []
    """Lowest first."""


class AutoGauge(msgspec.Struct, frozen=True, kw_only=True):
    """One figure that the controller watches."""

    name: str
    """`kv` (0..1) `waiting` (requests) `preemptions` (a second) `ttft_p95` (seconds)."""
    value: float | None
    """In that unit, as the thresholds are; None: unknown."""
    enter: float | None
    """Above it for `dwell_s` the cap comes down; None: not watched."""
    leave: float | None
    """Below it the cap may rise."""
    over_for_s: float | None = None
    """How long it has been above `enter`."""


class AutoState(msgspec.Struct, frozen=True, kw_only=True):
    mode: AutoMode = AutoMode.OFF
    who: str | None = None
    """Who set the mode; None: the profile."""
    since: float | None = None
    """Unix time."""
    until: float | None = None
    """Unix time at which the former mode returns; None: it stays."""
    then: Former | None = None
    """What returns at `until`."""
    cap: int | None = None
    """That it has put in force, or would have (`observe`); None: no cap."""
    text: str = ""
    """What it did last, and why; empty before the first time."""
    acted_at: float | None = None
    """Unix time."""
    overruled_by: str | None = None
    """Who set the cap that wins over its own."""
    gauges: list[AutoGauge] = []


class ThrottleSheet(msgspec.Struct, frozen=True, kw_only=True):
    """`throttle.get`."""

    limits: dict[str, Limit]
    """Every `LimitName`, in its order."""
    auto: AutoState = AutoState()
    counts: GateCounts = GateCounts()
    class_names: list[str] = []
    """Lowest first."""
    overlong: str = "reject"
    """What becomes of a prompt that is too long: `reject` `truncate` `segment`."""
    at: float = 0.0
    """Unix time at which it was read."""


LimitValues = Annotated[dict[str, LimitValue], msgspec.Meta(min_length=1, max_length=16)]
