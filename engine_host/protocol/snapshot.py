"""The snapshot: everything the console shows about one host at one moment.

`vllm-console status --json` prints exactly this, so the keys are a contract. Unknown is `None` (shown as an en dash),
never 0. Units stand in the key (`_s`, `_bytes`, `_tokens`, `_per_s`); fractions are 0..1. Every rate and ratio names
the window it was taken over. `_total` counts since the host started, over every engine it ran.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from .speculation import Speculation
from .switching import SwitchProgress

WINDOWS: dict[str, float] = {"10s": 10.0, "1m": 60.0, "5m": 300.0}
"""Windows (name -> seconds) over which latencies are given."""


class State(StrEnum):
    """Where the host stands; the transitions are tabulated in `engine_host.engine.lifecycle`."""

    STARTING = "starting"
    SERVING = "serving"
    PAUSED = "paused"
    SWITCHING = "switching"
    DRAINING = "draining"
    RECOVERING = "recovering"
    DEAD = "dead"


class _Wire(msgspec.Struct, frozen=True):
    """Base of all snapshot parts: immutable; unknown fields from a newer host ignored."""


class Host(_Wire, frozen=True, kw_only=True):
    """The machine and the host process."""

    name: str
    pid: int
    boot_id: str
    """Changes with every start of the host process: a reader that sees a new one starts over."""
    version: str
    started_at: float
    """Unix time."""
    uptime_s: float
    http: str
    """Address of the OpenAI API, `host:port`."""
    tls: bool = False
    """The API speaks HTTPS."""
    cpu_usage: float | None = None
    load_1m: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    process_memory_bytes: int | None = None
    """Resident memory of the host and all its children."""

    @property
    def url(self) -> str:
        """Of the OpenAI API, without its path."""
        return f"{'https' if self.tls else 'http'}://{self.http}"


class ProfileRef(_Wire, frozen=True, kw_only=True):
    name: str
    digest: str
    path: str


class Failure(_Wire, frozen=True, kw_only=True):
    """Why the engine last died or did not start.

    Kept when an engine serves again, since an operator who comes later wants to know; `recovered_at` tells whether it
    still stands. An operator's restart clears it.
    """

    at: float
    """Unix time."""
    reason: str
    lines: list[str] = []
    """The engine's own last error lines, oldest first; none when it printed no error."""
    last_lines: list[str] = []
    """What it printed last, oldest first, given when there are no error lines. It need not have to do with the end."""
    recovered_at: float | None = None
    """Unix time from which an engine served again: the failure is past. `None`: it still stands."""


class Engine(_Wire, frozen=True, kw_only=True):
    """The engine behind the API. What only a running engine knows is unknown while none runs."""

    vllm_version: str | None = None
    model: str | None = None
    """The name it is served under; while no engine runs, as the profile says."""
    generation: int = 0
    """How many engines this host has started."""
    core_pids: list[int] = []
    max_model_len_tokens: int | None = None
    uptime_s: float | None = None
    phase: str | None = None
    """While starting: what it is doing, in words ("loading weights")."""
    phase_elapsed_s: float | None = None
    start_elapsed_s: float | None = None
    start_expected_s: float | None = None
    """The median of the last five starts of this profile."""
    start_took_s: float | None = None
    last_step_age_s: float | None = None
    """Since the scheduler last reported a step; grows while idle."""
    crashes_in_window: int = 0
    crash_limit: int = 3
    restart_in_s: float | None = None
    failure: Failure | None = None
    """The last one, also when it is past; see `Failure.recovered_at`."""
    switch: SwitchProgress | None = None
    """The switch under way."""
    live_unavailable_reason: str | None = None
    """Why there are no dials, and nothing that only the scheduler knows; None while there are, and without an
    engine."""


class Blocks(_Wire, frozen=True, kw_only=True):
    total: int | None = None
    active: int | None = None
    cached: int | None = None
    """Held only by the prefix cache, reusable at once. Known with the live scheduler."""
    free: int | None = None
    shared: int | None = None
    """Of the active ones: held by more than one request."""


class Kv(_Wire, frozen=True, kw_only=True):
    usage: float | None = None
    """Of the fullest engine core, 0..1."""
    usage_by_engine: list[float] = []
    blocks: Blocks = Blocks()
    block_size: int | None = None
    """Tokens a block holds."""
    capacity_tokens: int | None = None
    internal_waste: float | None = None
    """1 - tokens stored / (blocks held x block size), both counted once for every request that holds them."""
    longest_requests: float | None = None
    """How many requests of the longest length fit at once: capacity / longest length."""
    full_in_s: float | None = None
    """At the rate of the last `full_rate_window_s`; None while it does not fill."""
    full_rate_window_s: float | None = None


class Queue(_Wire, frozen=True, kw_only=True):
    running: int | None = None
    waiting: int | None = None
    waiting_by_reason: dict[str, int] = {}
    """Adds up to `waiting`. Words of `engine_host.live.sample.WAITING_REASONS`; where the scheduler cannot be looked
    into, `capacity` and `deferred`."""
    held: int | None = None
    """At the gate, not yet given to the engine."""
    oldest_wait_s: float | None = None
    """Of those waiting and those held."""
    preemptions_per_s: float | None = None
    preemptions_total: int = 0
    window_s: float | None = None
    stalled: bool = False
    stalled_reason: str | None = None
    """`hung`: requests run and no token comes. `stuck`: requests wait and none runs."""
    stalled_text: str | None = None
    """In words, with the request that is to blame where one is known."""


class Throughput(_Wire, frozen=True, kw_only=True):
    window_s: float | None = None
    prompt_tokens_per_s: float | None = None
    generation_tokens_per_s: float | None = None
    requests_per_s: float | None = None
    """Finished requests."""
    prompt_tokens_total: int = 0
    generation_tokens_total: int = 0
    requests_total: int = 0


class Percentiles(_Wire, frozen=True, kw_only=True):
    """`n` samples of one window; the percentiles are `None` when there were none."""

    n: int = 0
    p50_s: float | None = None
    p95_s: float | None = None
    p99_s: float | None = None


class Latency(_Wire, frozen=True, kw_only=True):
    """Window name (`10s` `1m` `5m`) -> percentiles."""

    ttft: dict[str, Percentiles] = {}
    itl: dict[str, Percentiles] = {}
    e2e: dict[str, Percentiles] = {}
    queue: dict[str, Percentiles] = {}


class PrefixCache(_Wire, frozen=True, kw_only=True):
    window_s: float | None = None
    enabled: bool | None = None
    hit_rate: float | None = None
    queried_tokens: int | None = None
    queried_tokens_total: int = 0
    hit_tokens_total: int = 0


class Throttle(_Wire, frozen=True, kw_only=True):
    """What the gate does."""

    auto: str = "off"
    """`off` `observe` `on`."""
    auto_text: str = ""
    """What the controller did last, and why."""
    auto_at: float | None = None
    """Unix time of it."""
    max_inflight: int | None = None
    """In force, whoever set it."""
    limited_by: list[str] = []
    """The limits in force that are not the profile's, by name; and what pauses or drains."""
    set_by: dict[str, str] = {}
    """Who set each of `limited_by`; `auto` is the controller. A host that does not tell leaves it empty."""
    paused: bool = False
    draining: bool = False
    inflight: int = 0
    admitted_total: int = 0
    held_total: int = 0
    refused_total: int = 0
    refused_by_reason: dict[str, int] = {}


class Dial(_Wire, frozen=True, kw_only=True):
    """A limit of the running scheduler: the value in force, and what it takes."""

    value: int
    low: int
    high: int
    start: int
    """Where it stands while nobody has set it: as the profile's `[dials]` says, else as the engine was started."""
    reason: str = ""
    who: str | None = None
    """Who set it last; None while it stands where the engine or its profile put it."""
    since: float | None = None
    """Unix time."""
    until: float | None = None
    """Unix time at which the former value returns; None: it stays."""


class GpuProcess(_Wire, frozen=True, kw_only=True):
    pid: int
    name: str
    memory_bytes: int | None = None
    is_ours: bool = False


class Gpu(_Wire, frozen=True, kw_only=True):
    """`None` where the driver does not tell (a MIG slice has no utilisation of its own)."""

    index: int
    name: str
    utilization: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    processes: list[GpuProcess] = []


class Alert(_Wire, frozen=True, kw_only=True):
    id: str
    severity: str
    text: str
    since: float


class Snapshot(_Wire, frozen=True, kw_only=True):
    host: Host
    profile: ProfileRef
    state: State
    state_since: float
    """Unix time of the last transition."""
    state_version: int
    """Grows with every transition; a changing call may demand the one it saw."""
    engine: Engine = Engine()
    kv: Kv = Kv()
    queue: Queue = Queue()
    speculation: Speculation = Speculation()
    throughput: Throughput = Throughput()
    latency: Latency = Latency()
    prefix_cache: PrefixCache = PrefixCache()
    throttle: Throttle = Throttle()
    dials: dict[str, Dial] = {}
    gpus: list[Gpu] = []
    alerts: list[Alert] = []
    at: float
    """Unix time, by the host's clock, at which the snapshot was taken."""
    age_s: float = 0.0
    """How old the snapshot was when it was handed out."""
    seq: int
