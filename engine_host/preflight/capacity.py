"""`max_model_len` against the KV cache: what one request of that length needs, what there is, the longest that fits.

vLLM refuses a start in which not even one request of `max_model_len` fits. The arithmetic is vLLM's: whole blocks, one
of them held back as the null block. What it says itself when a start fails of it: `engine_host.engine.kv_shortage`.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine_host.protocol.profiles import Finding

from .config import ConfigFacts
from .findings import amount, error, info, warning


@dataclass(frozen=True)
class Capacity:
    blocks: int
    """That requests can hold: vLLM's null block not counted."""
    tokens: int
    longest_tokens: int
    """One request alone, at most `max_model_len`."""


def capacity_of(facts: ConfigFacts, kv_bytes: int | None) -> Capacity | None:
    """What `kv_bytes` on one rank hold; None when the model or the size is unknown."""
    if facts.block_size is None or facts.block_bytes is None:
        return None
    if facts.num_gpu_blocks_override is not None:
        total = facts.num_gpu_blocks_override
    elif kv_bytes is not None:
        total = max(0, kv_bytes) // facts.block_bytes
    else:
        return None
    blocks = max(0, total - 1)
    tokens = blocks * facts.block_size
    return Capacity(blocks, tokens, min(tokens, facts.max_model_len))


def check_capacity(
    facts: ConfigFacts, kv_bytes: int | None, *, is_exact: bool
) -> tuple[Capacity | None, list[Finding]]:
    """`is_exact`: the size is configured; a forecast from what profiling may leave only warns."""
    capacity = capacity_of(facts, kv_bytes)
    if capacity is None or facts.block_size is None or facts.block_bytes is None:
        return capacity, []
    needed_blocks = -(-facts.max_model_len // facts.block_size)
    needed, available = needed_blocks * facts.block_bytes, capacity.blocks * facts.block_bytes
    if facts.is_length_fitted:
        return capacity, [
            info(
                "capacity.fitted",
                f"max_model_len = -1: vLLM will take the longest that fits, about {capacity.longest_tokens:,} tokens",
            )
        ]
    numbers = (
        f"one request of max_model_len = {facts.max_model_len:,} tokens needs {amount(needed)} of KV cache "
        f"({needed_blocks:,} blocks), "
    )
    if needed <= available:
        requests = capacity.tokens / facts.max_model_len
        if requests < 2 and facts.max_num_seqs > 1:
            return capacity, [
                info(
                    "capacity.one_request",
                    f"the KV cache holds {capacity.tokens:,} tokens, {requests:.1f} requests of max_model_len: two "
                    "long ones preempt each other",
                )
            ]
        return capacity, []
    known = is_exact and facts.is_kv_uniform
    text = (
        numbers
        + ("" if known else "about ")
        + f"{amount(available)} are there ({capacity.blocks:,} blocks): the longest that fits is "
        f"{capacity.longest_tokens:,} tokens"
    )
    more = "kv_cache_memory_bytes" if facts.kv_cache_memory_bytes is not None else "gpu_memory_utilization"
    if facts.num_gpu_blocks_override is not None:
        more = "num_gpu_blocks_override"
    if capacity.longest_tokens > 0:
        remedy = f"set max_model_len = {capacity.longest_tokens} or less, or raise {more}"
    else:
        remedy = f"raise {more}: not one block is left for requests"
    if more == "kv_cache_memory_bytes":
        remedy += f" to {needed + facts.block_bytes:_}"
    return capacity, [error("capacity.short", text, remedy) if known else warning("capacity.short", text, remedy)]
