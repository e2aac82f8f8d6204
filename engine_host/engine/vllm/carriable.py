"""Which requests can go on in another engine core, and as what.

What the old core alone knew is lost in a switch, so a request whose future depends on it is not carried: see `why_not`.
Pure: reads vLLM's front-end state and engine-core request by attribute.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Literal

from engine_host.engine.port import Bound

Fate = Literal["carry", "drain", "replay"]
"""As the fields of `Handling`."""


@dataclass(frozen=True)
class CarriedRequest:
    """One request on its way from engine to engine: vLLM's front-end state and the request it was started with."""

    request_id: str
    state: Any
    request: Any
    is_replayed: bool
    """Starts over in the new engine; nothing of it had reached the client."""
    given_up: Collection[str] = ()
    """Requests whose clients have hung up since; grows meanwhile. One of n choices is named by their parent."""

    @property
    def is_given_up(self) -> bool:
        parent = self.state.parent_req
        names = (self.request_id, self.state.external_req_id, parent.request_id if parent is not None else None)
        return any(name in self.given_up for name in names)


def total_tokens(request: Any) -> int:
    """Prompt and output at its longest."""
    return len(request.prompt_token_ids) + (request.sampling_params.max_tokens or 0)


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


def fate(state: Any, request: Any, bound: Bound) -> Fate:
    """What becomes of a request in an engine that allows `bound`, once its drain time is over."""
    reason = why_not(state, request) or bound.reason
    can_go_on = reason is None or (bound.is_same_tokenizer and can_replay(state, request))
    if not can_go_on or (bound.max_tokens is not None and total_tokens(request) > bound.max_tokens):
        return "drain"
    return "carry" if reason is None else "replay"


def can_replay(state: Any, request: Any) -> bool:
    """It can start over in another engine, unnoticed by its client."""
    return (
        was_nothing_sent(state)
        and request is not None
        and request.sampling_params is not None
        and request.prompt_token_ids is not None
        and not request.resumable
        and not request.mm_features
        and request.prompt_embeds is None
        and request.lora_request is None
    )
