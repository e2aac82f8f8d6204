"""How long a prompt may be for the engine that serves: by its context, as vLLM checks it, and by its KV cache."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any, Final

from engine_host.engine.port import EngineFacts
from engine_host.profiles.windows import for_answer

COMPLETION_MAX_TOKENS: Final = 16
"""What vLLM generates at most where a completion does not say; a chat may go on to the end of the context."""


@dataclass(frozen=True, slots=True)
class Room:
    """Of one engine, in tokens."""

    context: int
    """`max_model_len`: prompt and answer."""
    cache: int | None
    """That one request can hold in the KV cache, were it alone; None: unknown."""
    reserves_answer: bool
    """vLLM refuses a prompt that leaves no room for `max_tokens`; newer releases shorten the answer."""

    @property
    def is_cache_short(self) -> bool:
        """A request that vLLM takes may never get all the blocks that it needs."""
        return self.cache is not None and self.cache < self.context

    def longest_prompt(self, max_tokens: int | None) -> int:
        """That vLLM accepts."""
        if max_tokens is not None and (self.reserves_answer or max_tokens == 0):
            return self.context - max_tokens
        return self.context - 1

    def cut_prompt(self, max_tokens: int | None) -> int:
        """What a prompt is cut to, so that the answer has its room too."""
        room = self.context if self.cache is None else min(self.context, self.cache)
        return room - (for_answer(room) if max_tokens is None else max(1, max_tokens))


@lru_cache(maxsize=4)
def room_of(facts: EngineFacts) -> Room | None:
    """None where the engine's context is unknown."""
    if facts.max_model_len_tokens is None:
        return None
    return Room(facts.max_model_len_tokens, _cache_for_one(facts), facts.reserves_answer)


def _cache_for_one(facts: EngineFacts) -> int | None:
    """The capacity counts the block that vLLM keeps for itself in every core, and is rounded down where the context is
    no multiple of a block: both are put right, since a request that is one block too long waits for ever."""
    if facts.capacity_tokens is None:
        return None
    cores = max(1, len(facts.core_pids))
    tokens = facts.capacity_tokens // cores
    if facts.total_blocks and facts.block_size:
        usable = max(1, facts.total_blocks // cores)
        block = facts.block_size * max(1, round(tokens / (usable + 1) / facts.block_size))
        tokens = math.ceil(Fraction(facts.capacity_tokens * usable, (usable + 1) * cores * block)) * block
    if tokens < (facts.max_model_len_tokens or 0):
        tokens -= facts.k_max or 0  # slots for drafts, which vLLM asks for up to the end of the context
    return tokens


def max_tokens_of(path: str, request: Mapping[str, Any]) -> int | None:
    """That a request asks for at most; None: as many as fit."""
    if path == "/v1/completions":
        return _whole(request.get("max_tokens", COMPLETION_MAX_TOKENS))
    asked = _whole(request.get("max_completion_tokens"))
    return _whole(request.get("max_tokens")) if asked is None else asked


def _whole(value: object) -> int | None:
    """As vLLM reads a number; what is none it will refuse itself."""
    try:
        return int(float(value)) if isinstance(value, int | float | str) else None
    except (ValueError, OverflowError):
        return None
