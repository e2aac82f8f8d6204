"""`[throttle]` and `[throttle.auto]` of a profile: what the gate lets through from the start, and what the controller
watches."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

Share = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]
Seconds = Annotated[float, msgspec.Meta(gt=0.0, le=86_400.0)]
Rate = Annotated[float, msgspec.Meta(gt=0.0)]
Count = Annotated[int, msgspec.Meta(ge=1)]


class Auto(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[throttle.auto]`: additive increase, multiplicative decrease of the cap on requests in flight."""

    mode: Literal["off", "observe", "on"] = "off"
    kv_enter: Share | None = 0.90
    kv_leave: Share | None = 0.80
    waiting_enter: Annotated[float, msgspec.Meta(ge=0.0)] | None = 8
    waiting_leave: Annotated[float, msgspec.Meta(ge=0.0)] | None = 2
    preemptions_enter: Annotated[float, msgspec.Meta(ge=0.0)] | None = 0.5
    """A second."""
    preemptions_leave: Annotated[float, msgspec.Meta(ge=0.0)] | None = 0.0
    ttft_p95_enter_s: Seconds | None = None
    ttft_p95_leave_s: Seconds | None = None
    dwell_s: Seconds = 3.0
    """How long a figure stays above its enter threshold before the cap comes down."""
    leave_dwell_s: Seconds = 5.0
    """How long all stay below their leave threshold before the cap rises."""
    decrease: Annotated[float, msgspec.Meta(gt=0.0, lt=1.0)] = 0.5
    """The cap is multiplied by it."""
    increase: Count = 1
    """Added to the cap every `increase_every_s`."""
    increase_every_s: Seconds = 2.0
    min_inflight: Count = 1
    dials: list[Literal["speculative_tokens", "max_active_seqs"]] = []
    """That it may turn down beside the cap."""


class Throttle(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[throttle]`."""

    max_inflight: Count | None = None
    request_rate: Rate | None = None
    request_burst: Count | None = None
    prompt_token_rate: Rate | None = None
    prompt_token_burst: Count | None = None
    hold_queue: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 256
    hold_deadline_s: Annotated[float, msgspec.Meta(ge=0.0, le=86_400.0)] = 30.0
    min_class: str | None = None
    classes: list[str] = ["low", "normal", "high"]
    """Lowest first."""
    default_class: str | None = None
    """None: the middle one. A negative `priority` of vLLM's (sooner) is one higher, a positive one is one lower."""
    class_header: str | None = None
    """A request header whose value names the class; None: clients choose by `priority` alone."""
    api_key_classes: dict[str, str] = {}
    """API key, or `sha256:` and its digest in hex, to class; it wins over header and `priority`."""
    overlong: Literal["reject", "truncate", "segment"] = "reject"
    truncate_keep: Literal["start", "end"] = "end"
    segment_overlap_tokens: Annotated[int, msgspec.Meta(ge=0)] = 64
    segment_max_windows: Count = 32
    auto: Auto = Auto()
