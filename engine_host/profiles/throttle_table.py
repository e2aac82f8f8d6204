"""`[throttle]` and `[throttle.auto]` of a profile: what the gate lets through from the start, and what the controller
watches.

Only what each key takes by itself; what two of them make of each other is in `throttle_check`.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

MOST = 1_000_000_000
"""Of anything that is counted: beyond it a limit limits nothing, and a mistyped one is noticed."""
LEAST_RATE = 0.001
"""A second: below it nobody is let in for a quarter of an hour, which is a pause."""


def _share(text: str) -> msgspec.Meta:
    return msgspec.Meta(ge=0.0, le=1.0, description=text)


def _at_least_0(text: str) -> msgspec.Meta:
    return msgspec.Meta(ge=0.0, le=float(MOST), description=text)


def _seconds(text: str) -> msgspec.Meta:
    return msgspec.Meta(gt=0.0, le=86_400.0, description=text)


def _rate(text: str) -> msgspec.Meta:
    return msgspec.Meta(ge=LEAST_RATE, le=float(MOST), description=text)


def _count(text: str) -> msgspec.Meta:
    return msgspec.Meta(ge=1, le=MOST, description=text)


def _told(text: str) -> msgspec.Meta:
    return msgspec.Meta(description=text)


class Auto(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[throttle.auto]`: additive increase, multiplicative decrease of the cap on requests in flight."""

    mode: Annotated[
        Literal["off", "observe", "on"], _told("Whether the controller acts, or only says what it would do.")
    ] = "off"
    kv_enter: Annotated[float, _share("KV-cache usage above which the cap comes down; 1.0: never.")] | None = 0.90
    kv_leave: Annotated[float, _share("KV-cache usage below which the cap may rise.")] | None = 0.85
    waiting_enter: Annotated[float, _at_least_0("Requests waiting in the engine above which it falls.")] | None = 8.0
    waiting_leave: Annotated[float, _at_least_0("Requests waiting below which it may rise.")] | None = 2.0
    preemptions_enter: Annotated[float, _at_least_0("Preemptions a second above which it comes down.")] | None = 0.5
    preemptions_leave: Annotated[float, _at_least_0("Preemptions a second up to which it may rise.")] | None = 0.0
    ttft_p95_enter_s: (
        Annotated[float, _seconds("95th percentile of the time to first token above which it comes down.")] | None
    ) = None
    ttft_p95_leave_s: Annotated[float, _seconds("The same, below which it may rise.")] | None = None
    dwell_s: Annotated[
        float, _seconds("How long a figure stays above its enter threshold before the cap comes down.")
    ] = 1.5
    leave_dwell_s: Annotated[float, _seconds("How long all stay below their leave threshold before the cap rises.")] = (
        5.0
    )
    decrease: Annotated[float, msgspec.Meta(gt=0.0, lt=1.0, description="The cap is multiplied by it.")] = 0.85
    increase: Annotated[int, _count("Added to the cap every increase_every_s.")] = 1
    increase_every_s: Annotated[float, _seconds("How often the cap rises.")] = 2.0
    min_inflight: Annotated[int, _count("The cap never comes below it.")] = 1
    dials: Annotated[
        list[Literal["speculative_tokens", "max_active_seqs"]], _told("Dials that it may turn down beside the cap.")
    ] = []


class Throttle(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[throttle]`."""

    max_inflight: Annotated[int, _count("Choices in flight: a request with n = 4 counts as four.")] | None = None
    request_rate: Annotated[float, _rate("Choices a second.")] | None = None
    request_burst: Annotated[int, _count("Choices that may come at once before request_rate counts.")] | None = None
    prompt_token_rate: Annotated[float, _rate("Prompt tokens a second.")] | None = None
    prompt_token_burst: (
        Annotated[int, _count("Prompt tokens that may come at once before prompt_token_rate counts.")] | None
    ) = None
    hold_queue: Annotated[
        int,
        msgspec.Meta(
            ge=0,
            le=1_000_000,
            description="Requests that may wait at the gate; 0: none, what is over a limit is refused at once.",
        ),
    ] = 256
    hold_deadline_s: Annotated[
        float, msgspec.Meta(ge=0.0, le=86_400.0, description="A request that has waited so long is refused with 429.")
    ] = 30.0
    min_class: Annotated[str, _told("Requests of a lower class are refused.")] | None = None
    classes: Annotated[list[str], _told("Priority classes, lowest first.")] = msgspec.field(
        default_factory=lambda: ["low", "normal", "high"]
    )
    default_class: (
        Annotated[
            str,
            _told(
                "Of a request that names none; without it the middle one. A negative priority of vLLM's (sooner) is "
                "one higher, a positive one is one lower."
            ),
        ]
        | None
    ) = None
    class_header: (
        Annotated[str, _told("A request header that names the class; without it clients choose by priority alone.")]
        | None
    ) = None
    api_key_classes: Annotated[
        dict[str, str],
        _told("API key, or sha256: and its digest in hex, to class; it wins over header and priority. Shown nowhere."),
    ] = {}
    overlong: Annotated[
        Literal["reject", "truncate", "segment"],
        _told("What becomes of a prompt that is longer than the model takes."),
    ] = "reject"
    truncate_keep: Annotated[Literal["start", "end"], _told("The end of the prompt that is kept.")] = "end"
    segment_overlap_tokens: Annotated[
        int, msgspec.Meta(ge=0, le=MOST, description="Tokens that a window shares with the one before.")
    ] = 64
    segment_max_windows: Annotated[int, _count("A prompt that would need more windows is refused.")] = 32
    auto: Annotated[Auto, _told("Automatic throttling.")] = Auto()
