"""Builds an AsyncLLM from a profile's arguments. Blocks for 20 to 120 s: for a thread of its own, once vLLM is
imported."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Mapping
from typing import Any

from engine_host.engine.port import EngineArguments, EngineStartError, StepSink
from engine_host.engine.vllm import resolved, statistics
from engine_host.engine.vllm.arguments import argument_names, configuration, serve_namespace
from engine_host.engine.vllm.device_gate import DeviceGate
from engine_host.engine.vllm.live.boards import Boards
from engine_host.engine.vllm.succession import succeedable
from engine_host.profiles import ValidNames

logger = logging.getLogger(__name__)


def build(
    arguments: EngineArguments,
    sink: StepSink,
    check_names: Callable[[ValidNames], None],
    on_config: Callable[[Mapping[str, Any]], None],
    is_given_up: Callable[[], bool],
    boards: Boards,
    gate: DeviceGate | None,
) -> tuple[Any, Any]:
    """`(argument namespace, AsyncLLM)`; see `VllmEngine` for what it tells whom. Asks `is_given_up` before it starts
    processes. `boards`: through which its scheduler will be looked into, if that can be. `gate`: where it waits before
    it touches a device. Raises `EngineStartError`, `OperatorError` for a wrong name, and whatever vLLM raises."""
    os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
    from vllm.v1.engine.async_llm import AsyncLLM

    check_names(argument_names())
    namespace = serve_namespace(arguments)
    with resolved.warnings_of_vllm() as said:
        engine_arguments, config = configuration(namespace)
    try:
        on_config(resolved.answer(config, said))
    except Exception:
        # Nobody's start fails because a check cannot read what it was built from.
        logger.warning("the configuration of this vLLM cannot be read for later checks", exc_info=True)
    if gate is not None:
        gate.prepare(config)
    if is_given_up():
        raise EngineStartError("stopped while starting")
    boards.prepare(config)
    with boards.in_environment(), gate.in_environment() if gate is not None else contextlib.nullcontext():
        # Not a variable of this frame: an import on the way may keep it for good (`VllmEngine._imported_and_built`).
        return namespace, succeedable(AsyncLLM).from_vllm_config(
            config,
            stat_loggers=[statistics.step_logger(sink)],
            enable_log_requests=engine_arguments.enable_log_requests,
            aggregate_engine_logging=engine_arguments.aggregate_engine_logging,
            disable_log_stats=engine_arguments.disable_log_stats,
        )
