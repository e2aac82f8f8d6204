"""What vLLM says when a start fails because its KV cache is too small for `max_model_len`, and what to do about it.

The words changed from release to release; all that were met are read. The operator gets the longest length that fits
and the setting that the profile has, instead of advice for a command line.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine_host.preflight.findings import amount

_CPU_SPACE = "VLLM_CPU_KVCACHE_SPACE"
"""Overrules the profile on a CPU."""


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


def explained(reason: str, lines: Sequence[str], engine: Mapping[str, Any]) -> str:
    """Why a start failed, with what to change in `[engine]` when it failed of this; else `reason` as it is."""
    shortage = parse_kv_shortage("\n".join([reason, *lines]))
    return reason if shortage is None else f"{shortage}: {remedy(shortage, engine)}"


def remedy(shortage: KvShortage, engine: Mapping[str, Any]) -> str:
    """One command or setting; the size that the profile sets is the one to raise."""
    sizes = ("num_gpu_blocks_override", "kv_cache_memory_bytes")
    more = next((key for key in sizes if engine.get(key) is not None), "gpu_memory_utilization")
    if os.environ.get(_CPU_SPACE) and more != "num_gpu_blocks_override":
        more = f"{_CPU_SPACE} in the host's environment"
    if shortage.longest_tokens:
        return f"set max_model_len = {shortage.longest_tokens} or less, or raise {more}"
    return f"raise {more}; no length fits as it is"


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
