"""Which requests cannot be answered in windows, and why: their answer would not be one, or no window can give it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from engine_host.gateway.prompts import Prompt

_SYSTEM_ROLES = ("system", "developer")


def why_not_segmented(path: str, request: Mapping[str, Any], prompts: Sequence[Prompt]) -> str | None:
    """In words; None for a request that can be."""
    if len(prompts) != 1:
        return "it has more than one prompt"
    if prompts[0].is_least:
        return "it holds more than text"
    if path == "/v1/chat/completions" and (reason := _why_not_chat(request)):
        return reason
    for name, reason in _REASONS.items():
        if request.get(name):
            return reason
    if request.get("n") not in (None, 1) or request.get("best_of") not in (None, 1):
        return "it asks for more than one choice"
    logprobs = request.get("logprobs")
    if logprobs is not None and logprobs is not False:  # 0 asks a completion for them
        return "it asks for log probabilities"
    if _kind_of(request.get("response_format")) not in (None, "text"):
        return "its output has to have a format"
    return None


def _why_not_chat(request: Mapping[str, Any]) -> str | None:
    roles = [message.get("role") for message in request["messages"]]
    if roles.count("user") != 1 or any(role not in ("user", *_SYSTEM_ROLES) for role in roles):
        return "it has messages beside a system message and one of the user"
    (content,) = (message.get("content") for message in request["messages"] if message.get("role") == "user")
    if isinstance(content, list) and len(content) != 1:
        return "the message of the user has several parts"
    return None


def _kind_of(response_format: object) -> object:
    return response_format.get("type") if isinstance(response_format, dict) else response_format


_FORMAT = "its output has to have a format"
_TOOLS = "it offers tools"
_LOGPROBS = "it asks for log probabilities"
_TOKEN_IDS = "it asks for token ids"

_REASONS = {
    "tools": _TOOLS,
    "functions": _TOOLS,
    "structured_outputs": _FORMAT,
    "guided_json": _FORMAT,
    "guided_regex": _FORMAT,
    "guided_choice": _FORMAT,
    "guided_grammar": _FORMAT,
    "top_logprobs": _LOGPROBS,
    "prompt_logprobs": _LOGPROBS,
    "logprob_token_ids": _LOGPROBS,
    "return_token_ids": _TOKEN_IDS,
    "return_tokens_as_token_ids": _TOKEN_IDS,
    "echo": "it asks for its prompt back",
    "return_prompt_text": "it asks for its prompt back",
    "use_beam_search": "it asks for a beam search",
    "continue_final_message": "it has an answer begun",
    "kv_transfer_params": "its KV blocks are handed to another engine",
    "ec_transfer_params": "its KV blocks are handed to another engine",
}
"""By field that is there and not empty."""
