"""The first token of an engine that has just started: proof that it can serve."""

from __future__ import annotations

import asyncio
import secrets
from typing import Any

from engine_host.engine.port import EngineStartError
from engine_host.engine.vllm.one_line import one_line


async def probe(llm: Any, timeout_s: float) -> None:
    """Raises `EngineStartError` when none comes."""
    try:
        tokens = await asyncio.wait_for(_first_token(llm), timeout_s)
    except TimeoutError:
        raise EngineStartError(f"the new engine gave no token within {timeout_s:.0f} s") from None
    except Exception as error:
        raise EngineStartError(f"the new engine failed at its first token: {one_line(error)}") from error
    if tokens != 1:
        raise EngineStartError(f"the new engine answered a probe for one token with {tokens}")


async def _first_token(llm: Any) -> int:
    """How many tokens it answers."""
    from vllm import SamplingParams

    params = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True)
    tokens = 0
    async for output in llm.generate({"prompt_token_ids": [1]}, params, f"probe-{secrets.token_hex(4)}"):
        tokens = len(output.outputs[0].token_ids)
    return tokens
