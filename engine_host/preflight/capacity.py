"""`max_model_len` against the KV cache: what one request of that length needs, what there is, the longest that fits.

vLLM refuses a start in which not even one request of `max_model_len` fits. The arithmetic is vLLM's: whole blocks, one
of them held back as the null block. `parse_kv_shortage` reads the same numbers from vLLM's own refusals, whose words
changed from release to release.
"""

from __future__ import annotations

import re
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


# --- vLLM's own words -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class KvShortage:
    """What an engine said when its KV cache was too small; None for what its release does not tell."""

    asked_tokens: int | None = None
    """`max_model_len`."""
    longest_tokens: int | None = None
    needed_bytes: int | None = None
    available_bytes: int | None = None

    def __str__(self) -> str:
        asked = f"max_model_len = {self.asked_tokens:,}" if self.asked_tokens else "max_model_len"
        parts = [f"the KV cache is too small for one request of {asked}"]
        if self.needed_bytes is not None:
            parts.append(f"{amount(self.needed_bytes)} needed")
        if self.available_bytes is not None:
            parts.append(f"{amount(self.available_bytes)} available")
        if self.longest_tokens is not None:
            parts.append(f"the longest that fits is {self.longest_tokens:,} tokens")
        return ", ".join(parts)


_UNITS = {"B": 1, "KIB": 1 << 10, "KB": 1 << 10, "MIB": 1 << 20, "MB": 1 << 20, "GIB": 1 << 30, "GB": 1 << 30}
"""GB and GiB alike: vLLM computes with 2**30."""
_NUMBER = r"([\d,_]+(?:\.\d+)?)"
_TOKENS_STORED = re.compile(
    rf"max(?:imum)? (?:seq(?:uence)?|model) len(?:gth)?\s*\({_NUMBER}\) is larger than the maximum number of tokens "
    rf"that can be stored in (?:the )?KV cache\s*\({_NUMBER}\)",
    re.I,
)
"""Up to 0.8, in tokens."""
_TO_SERVE = re.compile(
    rf"max(?:imum)? (?:seq(?:uence)?|model) len(?:gth)?\s*\({_NUMBER}\),?\s*\(?{_NUMBER}\s*([KMG]i?B)\s+"
    rf"(?:of )?KV\s+cache\s+is\s+needed,? which is larger than the available KV\s+cache\s+memory\s*"
    rf"\({_NUMBER}\s*([KMG]i?B)\)",
    re.I,
)
"""Since 0.8, in bytes."""
_LONGEST = re.compile(rf"estimated maximum model length is {_NUMBER}", re.I)
_NOTHING = re.compile(r"No available memory for the cache blocks", re.I)


def parse_kv_shortage(text: str) -> KvShortage | None:
    """The numbers in vLLM's refusal of a start, in the words of any release; None when it is about something else."""
    flat = " ".join(text.split())
    if match := _TO_SERVE.search(flat):
        asked, needed, needed_unit, available, available_unit = match.groups()
        longest = _LONGEST.search(flat)
        return KvShortage(
            asked_tokens=int(_value(asked)),
            longest_tokens=int(_value(longest[1].rstrip("."))) if longest else None,
            needed_bytes=int(_value(needed) * _UNITS[needed_unit.upper()]),
            available_bytes=int(_value(available) * _UNITS[available_unit.upper()]),
        )
    if match := _TOKENS_STORED.search(flat):
        return KvShortage(asked_tokens=int(_value(match[1])), longest_tokens=int(_value(match[2])))
    if _NOTHING.search(flat):
        return KvShortage(available_bytes=0)
    return None


def _value(text: str) -> float:
    return float(text.replace(",", "").replace("_", ""))
