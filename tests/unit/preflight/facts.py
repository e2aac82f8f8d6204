"""Resolved configurations as the probe tells them, with the demo model's figures unless said otherwise."""

from __future__ import annotations

from typing import Any

import msgspec

from engine_host.preflight.config import ConfigFacts
from engine_host.preflight.devices import Device, Holder
from engine_host.preflight.files import ModelFiles
from engine_host.preflight.weights import Weights

GIB = 1 << 30

DEMO = ConfigFacts(
    device="cpu",
    dtype_bytes=2,
    vocab_size=49152,
    max_model_len=2048,
    block_size=32,
    # 30 layers, 3 KV heads of 64, key and value, 2 bytes
    kv_bytes_per_token=23040,
    kv_cache_memory_bytes=75_000_000,
    gpu_memory_utilization=0.1,
    max_num_batched_tokens=2048,
    max_num_seqs=32,
    speculation_method="ngram",
    num_speculative_tokens=5,
)


def facts(**changes: Any) -> ConfigFacts:
    return msgspec.structs.replace(DEMO, **changes)


def on_gpu(**changes: Any) -> ConfigFacts:
    return facts(**{"device": "cuda", "kv_cache_memory_bytes": None, "gpu_memory_utilization": 0.9, **changes})


def model(weights_gib: float | None = 14.0, name: str = "model", dtype: str = "BF16", **config: Any) -> ModelFiles:
    weights = None if weights_gib is None else Weights({dtype: int(weights_gib * GIB)})
    return ModelFiles(name, None, config, weights)


def gpu(
    free_gib: float, total_gib: float = 80.0, *holders: Holder, index: int = 0, gives_back_gib: float | None = 0.0
) -> Device:
    given_back = None if gives_back_gib is None else int(gives_back_gib * GIB)
    return Device(f"GPU {index} (A100)", int(total_gib * GIB), int(free_gib * GIB), holders, given_back)
