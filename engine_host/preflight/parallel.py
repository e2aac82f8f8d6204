"""Whether the ranks of tensor parallelism can share the heads of the model, and of its draft.

vLLM checks half of it before it loads anything and the rest when the weights load, after minutes. Read in 0.26 and
0.32: every rank gets as many attention heads as every other; key-value heads are shared evenly or copied evenly; and a
`draft_model` is spread over the ranks of its target, whatever `draft_tensor_parallel_size` says. A configuration with
another value is built all the same: the older model runner then refuses it ("must be the same"), the newer one spreads
the draft over all ranks, where its layers refuse heads that do not divide.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from engine_host.pad_heads import heads_for
from engine_host.protocol.errors import OperatorError
from engine_host.protocol.profiles import Finding

from .files import ModelFiles
from .findings import error
from .names import SPECULATION

_THE_SAME = "number of attention heads"


def check_parallel(
    engine: Mapping[str, Any], model: ModelFiles, draft: ModelFiles | None, method: str | None = None
) -> list[Finding]:
    """`draft`: the second model that speculation loads, if any; `method`: what vLLM makes of it, when known."""
    ranks = engine.get("tensor_parallel_size") or 1
    if type(ranks) is not int or ranks < 1:
        return []
    findings = _shared(model, "the model", ranks, _others(draft))
    table = engine.get(SPECULATION)
    if draft is None or not isinstance(table, Mapping):
        return findings
    if (method or table.get("method")) not in (None, "draft_model"):
        return findings  # heads on the target's hidden states have rules of their own
    unshared = _shared(draft, "the draft", ranks, _others(model))
    own = table.get("draft_tensor_parallel_size")
    if type(own) is int and own != ranks:
        return [*findings, _other_ranks(own, ranks, unshared)]
    return [*findings, *unshared]


def _other_ranks(own: int, ranks: int, unshared: list[Finding]) -> Finding:
    text = (
        f"draft_tensor_parallel_size = {own} and tensor_parallel_size = {ranks}: vLLM builds the configuration and "
        "fails when the weights load, as it spreads a draft over all ranks of its target"
    )
    if not unshared:
        return error("parallel.draft", text, f"leave draft_tensor_parallel_size out, or set it to {ranks}")
    return error("parallel.draft", f"{text}; there, {unshared[0].text}", unshared[0].remedy)


def _shared(model: ModelFiles, what: str, ranks: int, other: tuple[int, ...]) -> list[Finding]:
    """`other`: attention heads of the model beside it, for a number of ranks that suits both."""
    heads, key_value = _heads(model), _key_value_heads(model)
    if heads is None:
        return []
    if heads % ranks:
        suits = [n for n in range(1, ranks) if math.gcd(heads, *other) % n == 0]
        pad = f"python -m engine_host.pad_heads {model.name} DIRECTORY --ranks {ranks}"
        offer = f"give it heads of zeros ({pad}), " if _can_be_padded(model, ranks) else ""
        return [
            error(
                "parallel.heads",
                f"{what} {model.name} has {heads} attention heads, which {ranks} ranks (tensor_parallel_size) cannot "
                "share",
                f"take a model whose heads {ranks} divides, {offer}or set tensor_parallel_size = {suits[-1]}",
            )
        ]
    if key_value is not None and key_value % ranks and ranks % key_value:
        return [
            error(
                "parallel.heads",
                f"{what} {model.name} has {key_value} key-value heads, which {ranks} ranks (tensor_parallel_size) can "
                "neither share nor copy evenly",
                f"set tensor_parallel_size to a divisor of {key_value}, or to a multiple of it that divides {heads}",
            )
        ]
    return []


def without_vllms_words(findings: Sequence[Finding]) -> list[Finding]:
    """vLLM's own refusal of the same names neither the model nor a remedy."""
    return [found for found in findings if found.id != "config.refused" or _THE_SAME not in found.text]


def _can_be_padded(model: ModelFiles, ranks: int) -> bool:
    try:
        heads_for(model.config, ranks)
    except (OperatorError, KeyError, ValueError, TypeError):
        return False
    return True


def _others(model: ModelFiles | None) -> tuple[int, ...]:
    heads = _heads(model) if model is not None else None
    return (heads,) if heads is not None else ()


def _heads(model: ModelFiles) -> int | None:
    return model.number("num_attention_heads")


def _key_value_heads(model: ModelFiles) -> int | None:
    """None for a model that keeps none as such: latent attention has one vector for all heads."""
    return None if "kv_lora_rank" in model.config else model.number("num_key_value_heads")
