"""The unfinished requests as vLLM's front end has them: `AsyncLLM.output_processor.request_states`.

Pure: reads vLLM's state by attribute. Its two clocks are told apart here: arrivals are Unix time, what the engine core
reports is monotonic, of the same machine.
"""

from __future__ import annotations

import time
from typing import Any

from engine_host.engine.port import FrontRequest


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
