"""The unfinished requests as vLLM's front end has them: `AsyncLLM.output_processor.request_states`.

Reads vLLM's state by attribute. Its two clocks are told apart here: arrivals are Unix time, what the engine core
reports is monotonic, of the same machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any

from engine_host.engine.port import FrontRequest
from engine_host.engine.vllm import carry

_aborting: set[asyncio.Task[None]] = set()
"""A task that nobody holds may be collected before it has run."""


def unfinished(llm: Any) -> list[FrontRequest]:
    """In the order in which they came. vLLM keeps no times where its statistics are off; the host leaves them on."""
    now, monotonic = time.time(), time.monotonic()
    return [_request(key, state, now, monotonic) for key, state in list(llm.output_processor.request_states.items())]


def _request(key: str, state: Any, now: float, monotonic: float) -> FrontRequest:
    stats = state.stats
    if stats is None:
        return FrontRequest(key, now, None, None, state.prompt_len, 0, state.max_tokens_param)
    waited_s = stats.scheduled_ts - stats.queued_ts if stats.scheduled_ts else None
    silent_s = max(0.0, monotonic - stats.last_token_ts) if stats.last_token_ts else None
    return FrontRequest(
        key,
        stats.arrival_time,
        waited_s,
        silent_s,
        state.prompt_len,
        stats.num_generation_tokens,
        state.max_tokens_param,
    )


def end(llm: Any, request_id: str, error: Exception) -> bool:
    """End one request with `error`: its client is told at once, its blocks are free at the next step. `request_id`: as
    the API shows it, or as the engine calls it (of n choices, one: they end together). False: there is none."""
    states = llm.output_processor.request_states
    if (named := states.get(request_id)) is not None:
        ending = [(key, state) for key, state in list(states.items()) if state.queue is named.queue]
    else:
        ending = [(key, state) for key, state in list(states.items()) if state.external_req_id == request_id]
    for key, state in ending:
        carry.remove(llm.output_processor, key, state)
    for queue in {id(state.queue): state.queue for _, state in ending}.values():
        queue.put(error)
    if ending:
        _hold(asyncio.create_task(_abort(llm, [key for key, _ in ending])))
    return bool(ending)


def _hold(task: asyncio.Task[None]) -> None:
    _aborting.add(task)
    task.add_done_callback(_aborting.discard)


async def _abort(llm: Any, request_ids: list[str]) -> None:
    """In the engine core. One that has just died has freed its blocks."""
    with contextlib.suppress(Exception):
        await llm.engine_core.abort_requests_async(request_ids)
