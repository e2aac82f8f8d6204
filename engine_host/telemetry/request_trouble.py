"""What is wrong with a request that does not move: hung, or stuck (field cases 6 and 7). Pure."""

from __future__ import annotations

from dataclasses import dataclass

from engine_host.engine.port import EngineFacts, FrontRequest
from engine_host.live.sample import RequestState
from engine_host.telemetry.gauges import HUNG_WITHOUT_TOKENS_S


@dataclass(frozen=True)
class Trouble:
    """Finds it for the requests of one engine at one moment."""

    capacity_tokens: int | None
    """Of the KV cache of one engine core."""
    stalled_reason: str | None
    """Of the queue as a whole (`protocol.snapshot.Queue`)."""
    last_step_age_s: float | None

    def of(self, request: FrontRequest, state: RequestState, *, is_oldest_waiting: bool) -> str | None:
        """In words, None for a request that is well."""
        if state is RequestState.RUNNING:
            return self._hung(request)
        needs = beyond_capacity(request.prompt_tokens, request.generated_tokens, self.capacity_tokens)
        if needs is not None:
            return f"stuck: {needs}; it can never be scheduled"
        if self.stalled_reason == "stuck" and is_oldest_waiting:
            return "stuck: the first in the queue, and none runs before it"
        return None

    def _hung(self, request: FrontRequest) -> str | None:
        if self.stalled_reason == "hung":
            silent_s = request.silent_s if request.silent_s is not None else self.last_step_age_s
        elif request.silent_s is not None and request.silent_s >= HUNG_WITHOUT_TOKENS_S:
            silent_s = request.silent_s
        else:
            return None
        return "hung: no token comes" if silent_s is None else f"hung: no token for {silent_s:.0f} s"


def beyond_capacity(prompt_tokens: int, generated_tokens: int, capacity_tokens: int | None) -> str | None:
    """What a request needs and cannot get: all its tokens so far have to lie in the cache of one core at once."""
    tokens = prompt_tokens + generated_tokens
    if capacity_tokens is None or tokens <= capacity_tokens:
        return None
    what = "prompt and output have" if generated_tokens else "its prompt has"
    return f"{what} {tokens:,} tokens, the KV cache holds {capacity_tokens:,}"


def core_capacity(facts: EngineFacts) -> int | None:
    """Tokens that the KV cache of one engine core holds."""
    return None if facts.capacity_tokens is None else facts.capacity_tokens // max(1, len(facts.core_pids))
