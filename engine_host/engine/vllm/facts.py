"""What does not change while a vLLM engine runs, read from its configuration."""

from __future__ import annotations

from typing import Any

from engine_host.engine.port import EngineFacts
from engine_host.engine.vllm.core_processes import core_processes
from engine_host.engine.vllm.releases import installed_version


def facts_of(llm: Any) -> EngineFacts:
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
        core_pids=tuple(process.pid for process in core_processes(llm)),
        reserves_answer=_reserves_answer(),
    )


def _model_name(model_config: Any) -> str:
    """What to call the model: the name it is served under, else the last part of its path."""
    served = model_config.served_model_name
    name = served[0] if isinstance(served, list) and served else served
    return str(name or model_config.model).rstrip("/").rsplit("/", 1)[-1]


def _reserves_answer() -> bool:
    """Whether this release counts `max_tokens` against the prompt, found out by asking it."""
    try:
        from vllm.renderers import TokenizeParams

        return bool(TokenizeParams(max_total_tokens=2, max_output_tokens=1).max_input_tokens == 1)
    except (ImportError, AttributeError, TypeError):
        return False
