"""Every method of the control socket: its parameters, its result, and exactly one risk class.

The server checks the caller's role against the risk before it looks at anything else; the console derives from the
same table what to offer. A method that is not here does not exist.

Server-sent notifications: `hello` (params `Hello`), first frame of every connection; `telemetry` (params `Snapshot`)
and `event` (params `Event`) after a subscription.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

import msgspec

from .events import Event
from .profiles import Preflight, ProfileChanges, ProfileDetail, ProfileDiff, ProfileList, Tier
from .snapshot import Dial, Snapshot, State
from .switching import SwitchForecast, SwitchResult, SwitchStatus
from .throttling import AutoMode, LimitValue, LimitValues, ThrottleSheet


class Risk(StrEnum):
    READ = "read"
    OPERATE = "operate"
    DANGEROUS = "dangerous"


class Role(StrEnum):
    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"


ALLOWED: dict[Role, frozenset[Risk]] = {
    Role.VIEWER: frozenset({Risk.READ}),
    Role.OPERATOR: frozenset({Risk.READ, Risk.OPERATE}),
    Role.ADMIN: frozenset(Risk),
}


IntervalSeconds = Annotated[float, msgspec.Meta(ge=0.1, le=60.0)]
SpanSeconds = Annotated[float, msgspec.Meta(gt=0.0, le=300.0)]
SeriesNames = Annotated[list[str], msgspec.Meta(max_length=64)]
"""More than every series there is; bounds what one reply costs."""
EventLimit = Annotated[int, msgspec.Meta(ge=1, le=10_000)]
EventCursor = Annotated[int, msgspec.Meta(ge=0)]
DrainSeconds = Annotated[float, msgspec.Meta(ge=0.0, le=86_400.0)]
TtlSeconds = Annotated[float, msgspec.Meta(ge=1.0, le=604_800.0)]
"""How long a setting holds before the former one returns: a second to a week."""
Reason = Annotated[str, msgspec.Meta(max_length=500)]
IdempotencyKey = Annotated[str, msgspec.Meta(min_length=1, max_length=128)]
"""Bounds stand in the types, so the decoder refuses what the docstrings exclude, and names the field."""


class _Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters: an unknown name is an error, so that a misspelt limit is never silently no limit."""


class ProtocolRange(msgspec.Struct, frozen=True, kw_only=True):
    min: int
    max: int


class Hello(msgspec.Struct, frozen=True, kw_only=True):
    protocol: ProtocolRange
    host_version: str
    vllm_version: str | None
    boot_id: str
    capabilities: list[str]
    """What this host can do beyond the method table; a capability that a vLLM version lacks is absent."""
    role: Role
    uid: int
    login: str
    state: State
    state_version: int
    seq: int
    """Of the newest snapshot."""
    event_seq: int
    """Of the newest event, 0 when none."""


class NoParams(_Params, frozen=True, kw_only=True):
    pass


class SubscribeTelemetry(_Params, frozen=True, kw_only=True):
    interval_s: IntervalSeconds = 1.0
    """0.1 to 60. Latest wins: a slow reader gets fewer, newer snapshots."""


class Subscribed(msgspec.Struct, frozen=True, kw_only=True):
    seq: int


class HistoryParams(_Params, frozen=True, kw_only=True):
    series: SeriesNames
    """Dotted snapshot keys; see `engine_host.telemetry.store.SERIES`."""
    span_s: SpanSeconds = 300.0
    """At most 300."""


class History(msgspec.Struct, frozen=True, kw_only=True):
    end_at: float
    """Unix time of the last value."""
    step_s: float
    series: dict[str, list[float | None]]
    """Oldest first, one value a step; `None` where nothing is known."""


class EventsList(_Params, frozen=True, kw_only=True):
    after_seq: EventCursor = 0
    limit: EventLimit = 200
    """1 to 10,000; the newest are kept."""


class EventList(msgspec.Struct, frozen=True, kw_only=True):
    events: list[Event]
    """Oldest first."""
    last_seq: int
    missed: bool = False
    """Events after `after_seq` existed that the host no longer keeps."""


class SubscribeEvents(_Params, frozen=True, kw_only=True):
    after_seq: EventCursor | None = None
    """Replays kept events after this one first; `None`: only new ones."""


class Change(_Params, frozen=True, kw_only=True):
    """Base of every changing call."""

    reason: Reason = ""
    idempotency_key: IdempotencyKey
    """A call repeated with the same key by the same user returns the first outcome and does nothing again."""
    expected_state_version: int | None = None


class StopParams(Change, frozen=True, kw_only=True):
    drain_timeout_s: DrainSeconds | None = None
    """How long running requests may take to finish; `None`: the host's own setting."""


class RestartParams(Change, frozen=True, kw_only=True):
    drain_timeout_s: DrainSeconds | None = None


class ProfileName(_Params, frozen=True, kw_only=True):
    name: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]


class DiffParams(_Params, frozen=True, kw_only=True):
    before: str | None = None
    """`None`: what runs."""
    after: str


class ForecastParams(_Params, frozen=True, kw_only=True):
    profile: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
    tier: Tier | None = None
    """Force a tier; `None`: the cheapest that works."""


class SwitchParams(Change, frozen=True, kw_only=True):
    profile: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
    tier: Tier | None = None
    drain_timeout_s: DrainSeconds | None = None
    """For requests that cannot be carried; `None`: the running profile's own."""


class CancelParams(Change, frozen=True, kw_only=True):
    pass


class ReloadParams(Change, frozen=True, kw_only=True):
    pass


class Applied(msgspec.Struct, frozen=True, kw_only=True):
    """Sent when the change is in force, not when it was accepted."""

    state: State
    state_version: int
    took_s: float
    text: str


class Reloaded(Applied, frozen=True, kw_only=True):
    """The directory was read; nothing of the running engine is changed."""

    changes: ProfileChanges


class DialSheet(msgspec.Struct, frozen=True, kw_only=True):
    dials: dict[str, Dial]
    unavailable_reason: str | None = None
    """Why there are none, in words."""


class DialsSet(Change, frozen=True, kw_only=True):
    values: Annotated[dict[str, int | None], msgspec.Meta(min_length=1, max_length=8)]
    """By dial; `None`: back to where it stands while nobody has set it."""
    for_s: TtlSeconds | None = None
    """After it the former value returns; `None`: it stays."""
    expected: Annotated[dict[str, int], msgspec.Meta(max_length=8)] | None = None
    """By dial, the value that the caller saw: another one in force refuses the call."""


class DialsApplied(Applied, frozen=True, kw_only=True):
    dials: dict[str, Dial]


class ThrottleSet(Change, frozen=True, kw_only=True):
    limits: LimitValues
    """By `LimitName`; None: no such limit, even where the profile has one."""
    for_s: TtlSeconds | None = None
    """After it the former value returns; `None`: it stays."""
    expected: Annotated[dict[str, LimitValue], msgspec.Meta(max_length=16)] | None = None
    """By limit, the value that the caller saw: another one in force refuses the call."""


class ThrottleClear(Change, frozen=True, kw_only=True):
    names: Annotated[list[str], msgspec.Meta(max_length=16)] = []
    """Of limits, and `auto` for the mode of the controller: back to what the profile says. Empty: all that an operator
    has set, a pause and a drain too."""
    expected: Annotated[dict[str, LimitValue], msgspec.Meta(max_length=16)] | None = None
    """As of `throttle.set`; `auto` is the mode."""


class ThrottleAuto(Change, frozen=True, kw_only=True):
    mode: AutoMode
    for_s: TtlSeconds | None = None
    expected: AutoMode | None = None
    """The mode that the caller saw: another one in force refuses the call."""


class PauseParams(Change, frozen=True, kw_only=True):
    for_s: TtlSeconds | None = None
    expected: Annotated[dict[str, LimitValue], msgspec.Meta(max_length=16)] | None = None
    """As of `throttle.set`."""


class ResumeParams(Change, frozen=True, kw_only=True):
    expected: Annotated[dict[str, LimitValue], msgspec.Meta(max_length=16)] | None = None
    """As of `throttle.set`."""


class ThrottleApplied(Applied, frozen=True, kw_only=True):
    throttle: ThrottleSheet
    has_changed: bool = True
    """False: there was nothing to take back."""


class RequestOrder(StrEnum):
    AGE = "age"
    """Oldest first."""
    WAITED = "waited"
    BLOCKS = "blocks"
    PROMPT = "prompt"
    GENERATED = "generated"
    PREEMPTIONS = "preemptions"


REQUEST_STATES = ("running", "waiting", "deferred", "preempted")
"""Where a request stands, in the order in which it is told. `deferred` waits for something else than room."""


class RequestsList(_Params, frozen=True, kw_only=True):
    order: RequestOrder = RequestOrder.AGE
    """Largest first."""
    state: str | None = None
    """Only those in it, of `REQUEST_STATES`."""
    match: Annotated[str, msgspec.Meta(max_length=200)] = ""
    """Only those whose id contains it."""
    limit: Annotated[int, msgspec.Meta(ge=1, le=2_000)] = 500


class RequestRow(msgspec.Struct, frozen=True, kw_only=True):
    """One unfinished request; what only the scheduler knows is `None` without it."""

    id: str
    state: str
    age_s: float
    waited_s: float
    """From its arrival to its first step, and after each preemption until it ran again; until now while it waits. The
    scheduler tells of it at once; without its word the first step is known with the first token, the rest not."""
    prompt_tokens: int | None = None
    generated_tokens: int | None = None
    max_tokens: int | None = None
    """That may be generated."""
    cached_tokens: int | None = None
    blocks: int | None = None
    priority: int | None = None
    preemptions: int | None = None
    drafted: int | None = None
    accepted: int | None = None
    trouble: str | None = None
    """In words: hung, or stuck because it can never be scheduled or nothing runs before it."""


class RequestList(msgspec.Struct, frozen=True, kw_only=True):
    requests: list[RequestRow]
    total: int
    """That there are; `requests` holds those asked for."""
    by_state: dict[str, int]
    at: float
    """Unix time."""
    unavailable_reason: str | None = None
    """Why the scheduler's own figures are missing."""


class RequestAbort(Change, frozen=True, kw_only=True):
    id: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]


class KvMapParams(_Params, frozen=True, kw_only=True):
    cells: Annotated[int, msgspec.Meta(ge=1, le=4_096)] = 512


class KvHolder(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    blocks: int


class KvMap(msgspec.Struct, frozen=True, kw_only=True):
    """The blocks in order of their numbers, in groups of equal size (the last may be smaller)."""

    at: float
    """Unix time."""
    blocks_per_cell: int
    cells: list[tuple[int, int, int, int]]
    """Blocks in each `engine_host.live.sample.BlockState`, in its order; every block is in one of them."""
    holders: list[KvHolder]
    """Who holds most, at most eight."""
    unavailable_reason: str | None = None


@dataclass(frozen=True)
class Method:
    name: str
    risk: Risk
    params: type[msgspec.Struct]
    result: Any
    summary: str


METHODS: dict[str, Method] = {
    m.name: m
    for m in (
        Method("status", Risk.READ, NoParams, Snapshot, "the newest snapshot"),
        Method("telemetry.subscribe", Risk.READ, SubscribeTelemetry, Subscribed, "a snapshot every interval"),
        Method("history", Risk.READ, HistoryParams, History, "recent values of chosen series"),
        Method("events.list", Risk.READ, EventsList, EventList, "kept events after a sequence number"),
        Method("events.subscribe", Risk.READ, SubscribeEvents, Subscribed, "events as they happen"),
        Method("profiles.list", Risk.READ, NoParams, ProfileList, "the profiles this host can switch to"),
        Method("profiles.get", Risk.READ, ProfileName, ProfileDetail, "one profile's effective values"),
        Method("profiles.diff", Risk.READ, DiffParams, ProfileDiff, "what differs, and which tier each change needs"),
        Method("profiles.check", Risk.READ, ProfileName, Preflight, "check one profile, touch nothing"),
        Method("profiles.reload", Risk.OPERATE, ReloadParams, Reloaded, "read the profiles anew, tell what changed"),
        Method("dials.get", Risk.READ, NoParams, DialSheet, "the live dials with their range"),
        Method("dials.set", Risk.OPERATE, DialsSet, DialsApplied, "set live dials, at the next scheduler step"),
        Method("throttle.get", Risk.READ, NoParams, ThrottleSheet, "the limits at the gate, and what it has done"),
        Method("throttle.set", Risk.OPERATE, ThrottleSet, ThrottleApplied, "set limits at the gate"),
        Method("throttle.clear", Risk.OPERATE, ThrottleClear, ThrottleApplied, "back to the profile's limits"),
        Method("throttle.auto", Risk.OPERATE, ThrottleAuto, ThrottleApplied, "automatic throttling: off, observe, on"),
        Method("pause", Risk.OPERATE, PauseParams, ThrottleApplied, "hold every new request at the gate"),
        Method("resume", Risk.OPERATE, ResumeParams, ThrottleApplied, "end a pause or a drain at the gate"),
        Method("requests.list", Risk.READ, RequestsList, RequestList, "the unfinished requests"),
        Method("requests.abort", Risk.DANGEROUS, RequestAbort, Applied, "end one request with an error"),
        Method("kv.map", Risk.READ, KvMapParams, KvMap, "the KV blocks by state, and who holds most"),
        Method("switch.forecast", Risk.READ, ForecastParams, SwitchForecast, "what a switch would do (--dry-run)"),
        Method("switch.status", Risk.READ, NoParams, SwitchStatus, "the switch under way and the last one"),
        Method("switch", Risk.DANGEROUS, SwitchParams, SwitchResult, "change to another profile"),
        Method("switch.cancel", Risk.DANGEROUS, CancelParams, Applied, "cancel the switch under way"),
        Method("engine.restart", Risk.DANGEROUS, RestartParams, Applied, "drain, stop and start the engine"),
        Method("host.stop", Risk.DANGEROUS, StopParams, Applied, "drain, stop the engine and end the host"),
    )
}
