"""Builds an engine's configuration in a process of its own and tells what came out, as JSON.

    python -m engine_host.engine.vllm.config_probe < request.json > answer.json

Importing vLLM and resolving a configuration takes seconds of CPU, may load a model's own code and may touch a device,
so it must not happen inside the host. Reads attributes by name and leaves out what a release does not have. No weights
are loaded and no engine is started.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from typing import Any

_NICENESS = 10
"""The running engine comes first on a machine whose cores it needs."""


def main() -> int:
    answer_to = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever vLLM prints is log, not answer
    request = json.load(sys.stdin)
    # Outlives no host: the default action of SIGALRM ends the process even while it hangs in C code.
    signal.alarm(int(request["deadline_s"]) + 5)
    os.nice(_NICENESS)
    with answer_to:
        json.dump(_answer(request), answer_to)
    return 0


def _answer(request: Mapping[str, Any]) -> dict[str, Any]:
    answer: dict[str, Any] = {}
    try:
        from engine_host.engine.vllm.arguments import argument_names, engine_config
        from engine_host.engine.vllm.releases import installed_version

        answer["vllm_version"] = installed_version()
        names = argument_names()
        answer["names"] = {
            "engine": sorted(names.engine),
            "server": sorted(names.server),
            "nested": {table: sorted(keys) for table, keys in names.nested.items()},
        }
        if not _knows_all(names, request):
            return answer  # the caller says which, with the nearest valid ones
        config = engine_config(request["engine"], request["server"])
        answer["facts"] = _facts(config)
    except (Exception, SystemExit) as error:
        answer["refusal"] = _reason(error)
    return answer


def _knows_all(names: Any, request: Mapping[str, Any]) -> bool:
    engine = request["engine"]
    if not set(engine) <= set(names.engine) or not set(request["server"]) <= set(names.server):
        return False
    tables = [(engine.get(table), keys) for table, keys in names.nested.items()]
    return all(inner is None or (isinstance(inner, dict) and set(inner) <= set(keys)) for inner, keys in tables)


def _reason(error: BaseException) -> str:
    """The sentence in an error: a validation error of pydantic wraps it in the whole input."""
    details: Callable[[], list[dict[str, Any]]] | None = getattr(error, "errors", None)
    if callable(details):
        sentences = [
            ": ".join(
                [*(str(part) for part in detail.get("loc", ())), str(detail["msg"]).removeprefix("Value error, ")]
            )
            for detail in details()
        ]
        return "; ".join(sentences)
    text = " ".join(str(error).split())
    return text if len(text) > 20 else f"{type(error).__name__}: {text}"


def _facts(config: Any) -> dict[str, Any]:
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


if __name__ == "__main__":
    sys.exit(main())
