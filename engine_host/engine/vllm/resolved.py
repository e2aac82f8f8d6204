"""What a resolved configuration (`VllmConfig`) says to the preflight's checks, and what vLLM said while it resolved it.

Reads attributes by name and leaves out what a release does not have. The figures are of one rank (one GPU).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

from engine_host.engine.vllm.releases import installed_version


@contextlib.contextmanager
def warnings_of_vllm() -> Iterator[list[str]]:
    """The warnings that vLLM logs within, as sentences."""
    said: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())

    listener = Listener(logging.WARNING)
    logger = logging.getLogger("vllm")
    logger.addHandler(listener)
    try:
        yield said
    finally:
        logger.removeHandler(listener)


def answer(config: Any, warnings: list[str]) -> dict[str, Any]:
    """What a check learns of a configuration that was built (`engine_host.preflight.config.ProbeAnswer`)."""
    return {"vllm_version": installed_version(), "facts": config_facts(config), "warnings": warnings}


def config_facts(config: Any) -> dict[str, Any]:
    """What the checks need of the resolved configuration; see `engine_host.preflight.config.ConfigFacts`."""
    model, cache, parallel, scheduler = (
        config.model_config,
        config.cache_config,
        config.parallel_config,
        config.scheduler_config,
    )
    speculation = config.speculative_config
    draft = _draft(speculation)
    return {
        "device": config.device_config.device_type,
        "dtype_bytes": model.dtype.itemsize,
        "vocab_size": model.get_vocab_size(),
        "quantization": model.quantization,
        "max_model_len": model.max_model_len,
        "is_length_fitted": getattr(model, "original_max_model_len", None) == -1,
        "block_size": cache.block_size,
        "kv_bytes_per_token": _kv_bytes_per_token(model, parallel, cache),
        "draft_kv_bytes_per_token": (
            _kv_bytes_per_token(draft, speculation.draft_parallel_config, cache) if draft is not None else 0
        ),
        "is_kv_uniform": _is_kv_uniform(model, cache),
        "kv_cache_memory_bytes": getattr(cache, "kv_cache_memory_bytes", None),
        "num_gpu_blocks_override": cache.num_gpu_blocks_override,
        "gpu_memory_utilization": cache.gpu_memory_utilization,
        "enable_prefix_caching": cache.enable_prefix_caching,
        "enable_chunked_prefill": getattr(scheduler, "enable_chunked_prefill", None),
        "max_num_batched_tokens": scheduler.max_num_batched_tokens,
        "max_num_seqs": scheduler.max_num_seqs,
        "tensor_parallel_size": parallel.tensor_parallel_size,
        "pipeline_parallel_size": parallel.pipeline_parallel_size,
        "data_parallel_size_local": getattr(parallel, "data_parallel_size_local", None) or 1,
        "speculation_method": getattr(speculation, "method", None),
        "num_speculative_tokens": getattr(speculation, "num_speculative_tokens", None),
        "draft_tensor_parallel_size": getattr(speculation, "draft_tensor_parallel_size", None) or 1,
    }


def _draft(speculation: Any) -> Any:
    """The draft model's configuration when its layers take KV blocks; n-gram keeps the target's own in that field."""
    if speculation is None:
        return None
    method = getattr(speculation, "method", None)
    uses_blocks = (
        speculation.uses_draft_kv_cache()
        if hasattr(speculation, "uses_draft_kv_cache")
        else method == "draft_model" or speculation.use_eagle()
    )
    return speculation.draft_model_config if uses_blocks else None


def _kv_bytes_per_token(model: Any, parallel: Any, cache: Any) -> int | None:
    """On one rank, over its layers. None for models that keep no attention cache."""
    if getattr(model, "is_attention_free", False):
        return None
    layers = model.get_num_layers(parallel)
    head_size, dtype = model.get_head_size(), cache.cache_dtype
    if getattr(model, "use_mla", False):
        # One latent vector a token, the same on every rank; 656 bytes is the packed layout of fp8_ds_mla.
        per_layer = 656 if dtype == "fp8_ds_mla" else head_size * _element_bytes(dtype, model)
        return int(layers * per_layer)
    heads = model.get_num_kv_heads(parallel)
    return int(layers * heads * _bytes_per_head(dtype, head_size, model))


def _bytes_per_head(dtype: str, head_size: int, model: Any) -> int:
    """Key and value of one token and head, by vLLM's `AttentionSpec` of 0.26 and 0.32."""
    if dtype.startswith(("turboquant_", "ultraquant_")):
        from vllm.model_executor.layers.quantization.turboquant.config import TurboQuantConfig

        return int(TurboQuantConfig.from_cache_dtype(dtype, head_size).slot_size_aligned)
    if dtype == "int4_per_token_head":
        return 2 * (head_size // 2 + 4)  # a 4-byte scale each
    if dtype.endswith("_per_token_head"):
        return 2 * (head_size + 4)
    if dtype.startswith("nvfp4"):
        return 2 * (head_size // 2 + head_size // 16)  # a 1-byte scale for every 16 values
    return 2 * head_size * _element_bytes(dtype, model)


def _element_bytes(dtype: str, model: Any) -> int:
    if dtype.startswith(("fp8", "int8")):
        return 1
    return 4 if dtype == "float32" else 2 if dtype in ("float16", "bfloat16") else int(model.dtype.itemsize)


def _is_kv_uniform(model: Any, cache: Any) -> bool:
    """Every layer keeps every token, in the same format: then blocks are a matter of multiplication. Sliding windows,
    state-space layers and layers left unquantised make vLLM group and pad them."""
    return not (
        getattr(model, "is_hybrid", False)
        or model.get_sliding_window() is not None
        or getattr(model.hf_text_config, "sliding_window", None)
        or getattr(cache, "kv_cache_dtype_skip_layers", None)
    )
