"""The engine as the rest of the host sees it.

One adapter (`vllm.adapter`) implements this over vLLM; tests implement it with an engine that hangs or dies on demand.
Nothing here imports vLLM, so the lifecycle, the gateway and the telemetry are written and tested without it.

An engine is started once, serves, and is stopped once; a new one is made for every start. `stop` may be called at any
moment, also while `prepare` or `start` is still under way in its thread, and leaves no child process.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from engine_host.live.dial import DialName, DialRange
from engine_host.profiles.profile import EngineArguments as EngineArguments

if TYPE_CHECKING:  # what only checks a profile need not load numpy
    import numpy.typing as npt

    from engine_host.live.sample import LiveSample

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class SpeculationStep:
    """Draft outcomes of one scheduler step, summed over its requests."""

    drafts: int
    """Requests that had a draft verified."""
    drafted: int
    """Draft tokens verified."""
    accepted: int
    drafted_per_position: Sequence[int]
    accepted_per_position: Sequence[int]


@dataclass(frozen=True, slots=True)
class StepStats:
    """What one scheduler step of one engine reported. Latencies in seconds, one sample each."""

    engine_index: int
    # Gauges after the step; None when this record carries no scheduler state.
    running: int | None = None
    waiting: int | None = None
    waiting_deferred: int | None = None
    """Waiting, but passed over for a transient reason (LoRA limit, KV transfer, grammar compile)."""
    kv_usage: float | None = None
    # Deltas of the step.
    prompt_tokens: int = 0
    generation_tokens: int = 0
    preemptions: int = 0
    finished: int = 0
    prefix_queried_tokens: int = 0
    prefix_hit_tokens: int = 0
    speculation: SpeculationStep | None = None
    ttft_s: Sequence[float] = ()
    itl_s: Sequence[float] = ()
    e2e_s: Sequence[float] = ()
    queue_s: Sequence[float] = ()


STOPPED = "The server stopped its engine before this answer was finished. Send it again."
"""What the client of an answer is told that a stop of the host ends."""

StepSink = Callable[[StepStats], None]
"""Called on the event loop at every step: it must only append and return."""


@dataclass(frozen=True)
class EngineFacts:
    """What does not change while an engine runs."""

    vllm_version: str
    model: str
    max_model_len_tokens: int | None
    block_size: int | None
    total_blocks: int | None
    """KV blocks that requests can hold, over all engine cores (vLLM's null block not counted)."""
    capacity_tokens: int | None
    speculation_method: str | None
    k_max: int | None
    prefix_caching: bool | None
    core_pids: tuple[int, ...] = ()
    reserves_answer: bool = False
    """vLLM refuses a prompt that leaves no room for `max_tokens`; newer releases shorten the answer instead."""


@dataclass(frozen=True)
class Backlog:
    """What the front end knows of unfinished requests, whether or not the scheduler still reports."""

    unfinished: int
    first_token_waits_s: Sequence[float] = ()
    """Seconds since arrival of every request without a first token, longest first."""


class FrontRequest(NamedTuple):
    """One unfinished request as the front end knows it, whether or not the scheduler can be looked into.

    A named tuple, since there may be ten thousand of them.
    """

    id: str
    """As the scheduler calls it."""
    arrived: float
    """Unix time."""
    waited_s: float | None
    """From its arrival to its first step; None until it has its first token, with which vLLM tells it."""
    silent_s: float | None
    """Since its last token; None before the first."""
    prompt_tokens: int
    generated_tokens: int
    max_tokens: int | None
    """That may be generated."""


@dataclass(frozen=True)
class Death:
    """How an engine core ended, as far as the operating system tells."""

    text: str
    """"the engine core (pid 51) was killed by SIGKILL"."""
    by_signal: bool
    """Then the log, which may hold older errors, cannot name the cause."""


@dataclass(frozen=True)
class Bound:
    """What the next engine must allow for a request to be carried into it."""

    reason: str | None = None
    """Why nothing can be carried at all ("the model changes"); None if it can."""
    max_tokens: int | None = None
    """Prompt and output at their longest; None while unknown."""
    is_same_tokenizer: bool = True
    """A prompt is the same tokens to both engines: what cannot be carried may start over."""


@dataclass(frozen=True)
class Handling:
    """What a switch would do with the requests in flight now."""

    carry: int = 0
    drain: int = 0
    """Only the old engine can finish it: ends with an error when its drain time ends."""
    replay: int = 0
    """Cannot be carried, but the client has received nothing yet: starts over when its drain time ends."""


class LiveScheduler(Protocol):
    """The scheduler inside a running engine, seen and steered from outside. Valid until the engine's `stop`."""

    @property
    def ranges(self) -> Mapping[DialName, DialRange]:
        """Of the dials that this engine has; `speculative_tokens` is missing without speculation."""

    @property
    def missing(self) -> Mapping[DialName, str]:
        """Why it has not another one, in words, where that is not plain."""

    def samples(self) -> Sequence[LiveSample]:
        """The newest look into every engine core, at most a tenth of a second old while it works. Costs under a
        millisecond. Empty until the first one."""

    def steps(self, after: float) -> npt.NDArray[Any]:
        """`STEP` [steps], oldest first: those that ended after the monotonic second `after` and are still kept."""

    async def set_dials(self, values: Mapping[DialName, int]) -> None:
        """Returns when every core has applied them: at its next step, at once if it is idle. Values within `ranges`.
        Raises `TimeoutError` when a core does not answer, `ValueError` for a value outside its range."""


class CarriedStream(Protocol):
    """A request between two engines; only engines look inside."""

    @property
    def is_replayed(self) -> bool: ...
    @property
    def is_given_up(self) -> bool:
        """Its client has hung up since it was handed over."""


class Engine(Protocol):
    """One engine. `app` and `facts` are valid from the return of `start` until `stop`."""

    async def prepare(self, sink: StepSink) -> None:
        """Do as much of the start as touches no device; `start`, with the same sink, does the rest. May be left out.

        Raises `EngineStartError`; then nothing is left running.
        """

    async def start(self, sink: StepSink) -> None:
        """Build configuration, engine and API app; returns when requests can be served.

        Raises `EngineStartError`; then nothing is left running.
        """

    @property
    def app(self) -> AsgiApp:
        """vLLM's own API application."""

    @property
    def facts(self) -> EngineFacts: ...

    @property
    def is_dead(self) -> bool:
        """The engine core ended or failed; requests can no longer be served. Cheap: asked several times a second."""

    @property
    def death(self) -> Death | None:
        """None while the engine core runs, or when the system does not tell."""

    def backlog(self) -> Backlog: ...

    def requests(self) -> list[FrontRequest]:
        """The unfinished ones, in the order of their arrival. Costs about a microsecond each."""

    @property
    def live(self) -> LiveScheduler | str:
        """The scheduler inside, or why there is none to be reached, in words ("vLLM 0.40 is newer than ...")."""

    def abort(self, request_id: str, error: str) -> bool:
        """End one request; its client gets `error`, its blocks are free at the next step. False: no such request."""

    async def probe(self, timeout_s: float) -> None:
        """Have it generate one token. Raises `EngineStartError` when none comes."""

    def handling(self, bound: Bound) -> Handling:
        """What a switch would do with the requests in flight."""

    async def hand_over(self, bound: Bound, error: str) -> list[Any]:
        """Stop generating and give up every request that can go on in another engine, as opaque `CarriedStream`s.

        The others end with `error` as their text. From here on the engine takes no request; those that its app still
        accepts wait for `succeed`.
        """

    async def compute_ahead(self, other: Engine, bound: Bound, timeout_s: float) -> int:
        """Before it serves: compute what the requests of `other` hold that will be carried, so that `adopt` finds it in
        the prefix cache. Returns for how many; 0 when it cannot. `other` goes on meanwhile. Raises nothing."""

    async def adopt(self, carried: Sequence[Any], error: str) -> list[Any]:
        """Go on with requests handed over by another engine; returns those that do. Those too long for this engine end
        with `error`. Raises `EngineStartError` when it fails meanwhile; then they can still go on in another one."""

    def succeed(self, successor: Engine | None, error: str) -> None:
        """Tell a handed-over engine who goes on: what its app still sends goes there; None: it ends with `error`."""

    def reclaim_metrics(self) -> None:
        """Show this engine's metrics again after another one, started beside it, has taken their place and failed."""

    def drop(self, carried: Sequence[Any], error: str) -> None:
        """End requests that found no engine to go on in."""

    async def stop(self, timeout_s: float, *, keep_app: bool = False) -> None:
        """End engine and children, gracefully within `timeout_s`, then by force. Never raises.

        With `keep_app` the API app lives on for the answers that it still has to write, until `close_app`.
        """

    async def close_app(self) -> None:
        """End the API app kept by `stop`."""


class EngineStartError(Exception):
    """The engine did not start; the message is the engine's own reason in one line."""

    def __init__(self, reason: str, lines: Sequence[str] = (), last_lines: Sequence[str] = ()) -> None:
        """`lines` and `last_lines` as in `protocol.snapshot.Failure`."""
        super().__init__(reason)
        self.reason = reason
        self.lines = tuple(lines)
        self.last_lines = tuple(last_lines)


EngineFactory = Callable[[EngineArguments], Engine]
