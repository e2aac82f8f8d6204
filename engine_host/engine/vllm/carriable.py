"""Which requests can go on in another engine core, and as what.

What the old core alone knew is lost in a switch, so a request whose future depends on it is not carried: see `why_not`.
Pure: reads vLLM's front-end state and engine-core request by attribute.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from engine_host.engine.port import Bound


@dataclass(frozen=True)
class CarriedRequest:
    """One request on its way from engine to engine: vLLM's front-end state and the request it was started with."""

    request_id: str
    state: Any
    request: Any
    is_replayed: bool
    """Starts over in the new engine; nothing of it had reached the client."""

    @property
    def total_tokens(self) -> int:
        """Prompt and output at its longest."""
        return len(self.request.prompt_token_ids) + (self.request.sampling_params.max_tokens or 0)


def tokens_so_far(state: Any) -> list[int]:
    return list(state.detokenizer.output_token_ids) if state.detokenizer is not None else []


def is_untouched(state: Any) -> bool:
    """Nothing has been generated yet: the request can simply be sent again."""
    return not tokens_so_far(state)


def was_nothing_sent(state: Any) -> bool:
    """The client has received nothing of it: it waits for the whole answer, or for its first token."""
    return is_untouched(state) or state.output_kind.name == "FINAL_ONLY"


def why_not(state: Any, request: Any) -> str | None:
    """Why a request in the middle of its output cannot go on in another engine core as if nothing had happened; None
    if it can. Each reason is state that lives in the core alone and would start anew, or be counted otherwise."""
    if request is None or request.pooling_params is not None or request.sampling_params is None:
        return "not a text generation"
    if request.resumable or state.streaming_input:
        return "its input is streamed"
    if request.prompt_token_ids is None or request.prompt_embeds is not None or request.mm_features:
        return "its prompt is not text alone"
    if request.lora_request is not None:
        return "it uses a LoRA adapter"
    if is_untouched(state):
        return None
    params = request.sampling_params
    if params.structured_outputs is not None:
        return "its output is constrained by a grammar"
    if params.presence_penalty or params.frequency_penalty:
        return "it counts repetitions in its output"
    if params.seed is not None and params.temperature > 0:
        return "it samples with a seed"
    if params.bad_words:
        return "it forbids words"
    if params.prompt_logprobs is not None:
        return "it wants log probabilities of its prompt"
    if getattr(params, "thinking_token_budget", None) is not None:
        return "it has a thinking budget"
    if params.extra_args:
        return "it has engine-specific arguments"
    return None


def can_replay(state: Any, request: Any) -> bool:
    """It can start over in another engine, unnoticed by its client."""
    return (
        was_nothing_sent(state)
        and request.sampling_params is not None
        and request.prompt_token_ids is not None
        and not request.resumable
        and not request.mm_features
        and request.prompt_embeds is None
        and request.lora_request is None
    )


def is_carried(item: CarriedRequest, bound: Bound) -> bool:
    """It can go on where it stands in an engine that allows `bound`."""
    if bound.reason is not None or why_not(item.state, item.request) is not None:
        return False
    return bound.max_tokens is None or item.total_tokens <= bound.max_tokens
