"""Computing ahead, in an engine that has started beside another one, what that one's requests hold in KV blocks.

A carried request has its prompt and its tokens so far computed anew, and every stream is silent until the last of them
is: seconds, for a few thousand tokens on a CPU or some hundred thousand on a GPU. The new engine is idle until then.
So it is asked for one token behind each of them, while the old engine goes on; what it computes for that stays in its
prefix cache, and the carried requests find it there, up to their last tokens.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from typing import Any

from engine_host.engine.port import Bound
from engine_host.engine.vllm.carriable import fate, tokens_so_far
from engine_host.engine.vllm.ledger import Ledger

logger = logging.getLogger(__name__)

_ROUNDS = 3
"""The old engine goes on meanwhile: each round computes what it has added in the one before."""
_SHORT_S = 0.3
"""A round as short as this leaves nothing worth another one."""


async def forerun(llm: Any, ledger: Ledger, bound: Bound, timeout_s: float) -> int:
    """Compute in `llm` what the requests of `ledger` hold that will be carried; returns how many they were at first.

    A fault is no fault of the switch: the requests are then computed when they come.
    """
    deadline = time.monotonic() + timeout_s
    computed = 0
    for _ in range(_ROUNDS):
        began = time.monotonic()
        prompts = _held(ledger, bound)
        computed = computed or len(prompts)
        try:
            async with asyncio.timeout(deadline - began):
                await asyncio.gather(*(_compute(llm, *prompt) for prompt in prompts))
        except Exception as fault:
            logger.warning("not everything could be computed ahead: %r", fault)
            break
        if time.monotonic() - began < _SHORT_S:
            break
    return computed


def _held(ledger: Ledger, bound: Bound) -> list[tuple[list[int], str | None]]:
    """`(tokens, cache salt)` of each."""
    return [
        ([*request.prompt_token_ids, *tokens_so_far(state)], request.cache_salt)
        for _, state, request in ledger.unfinished()
        if fate(state, request, bound) == "carry"
    ]


async def _compute(llm: Any, tokens: list[int], salt: str | None) -> None:
    from vllm import SamplingParams

    prompt: dict[str, Any] = {"prompt_token_ids": tokens} | ({"cache_salt": salt} if salt else {})
    params = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True, detokenize=False)
    async with contextlib.aclosing(llm.generate(prompt, params, f"ahead-{secrets.token_hex(4)}")) as outputs:
        async for _ in outputs:
            pass
