"""vLLM's statistics: every step's as one `StepStats`, and its metrics in the process-wide Prometheus registry."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Sequence
from typing import Any

from engine_host.engine.port import EngineStartError, SpeculationStep, StepSink, StepStats

logger = logging.getLogger(__name__)


def step_logger(sink: StepSink) -> Callable[..., Any]:
    """A stat-logger class for vLLM that turns every step's statistics into one `StepStats`."""
    from vllm.v1.metrics.loggers import StatLoggerBase

    class StepLogger(StatLoggerBase):  # type: ignore[misc]
        def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
            self._has_warned = False

        def record(
            self, scheduler_stats: Any, iteration_stats: Any, mm_cache_stats: Any = None, engine_idx: int = 0
        ) -> None:
            try:
                sink(_step_stats(scheduler_stats, iteration_stats, engine_idx))
            except Exception as error:
                # An exception here would end vLLM's output loop, and every request with it.
                self._warn_once(error)

        def _warn_once(self, error: Exception) -> None:
            if not self._has_warned:
                self._has_warned = True
                logger.error("a step's statistics are lost, figures may stay unknown", exc_info=error)

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
    return SpeculationStep(
        drafts=drafts.num_drafts,
        drafted=drafts.num_draft_tokens,
        accepted=drafts.num_accepted_tokens,
        drafted_per_position=getattr(drafts, "num_draft_tokens_per_pos", None) or _reached(drafts, accepted),
        accepted_per_position=accepted,
    )


def _reached(drafts: Any, accepted: Sequence[int]) -> list[int]:
    """Drafts at least so long, by position, from a release that does not count them: those of one step are about
    equally long, as they follow one K. Never fewer than were accepted there."""
    everywhere, rest = divmod(drafts.num_draft_tokens, max(1, drafts.num_drafts))
    likely = [drafts.num_drafts] * everywhere + [rest]
    return [max(passed, likely[at] if at < len(likely) else 0) for at, passed in enumerate(accepted)]


def registered_collectors() -> list[Any]:
    """vLLM's metrics in the process-wide registry. A second engine takes the first one's off and puts on its own."""
    from prometheus_client import REGISTRY

    return [c for c in list(REGISTRY._collector_to_names) if getattr(c, "_name", "").startswith("vllm:")]


def put_back(collectors: Sequence[Any]) -> None:
    """Show these metrics again in place of those that another engine has registered."""
    from prometheus_client import REGISTRY

    for collector in registered_collectors():
        REGISTRY.unregister(collector)
    for collector in collectors:
        REGISTRY.register(collector)
