"""What vLLM's front end knows of its requests, in our words."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

from engine_host.engine.vllm.front_end import unfinished


def llm(**states: Any) -> Any:
    return SimpleNamespace(output_processor=SimpleNamespace(request_states=states))


def state(*, queued: float = 0.0, scheduled: float = 0.0, last_token: float = 0.0, generated: int = 0) -> Any:
    stats = SimpleNamespace(
        arrival_time=1_000.0,
        queued_ts=queued,
        scheduled_ts=scheduled,
        last_token_ts=last_token,
        num_generation_tokens=generated,
    )
    return SimpleNamespace(stats=stats, prompt_len=42, max_tokens_param=7)


def test_a_request_that_has_not_begun_has_neither_waited_nor_fallen_silent() -> None:
    [waiting] = unfinished(llm(a=state()))
    assert waiting == ("a", 1_000.0, None, None, 42, 0, 7)


def test_one_that_runs_tells_how_long_it_waited_and_since_when_it_is_silent() -> None:
    now = time.monotonic()
    [running] = unfinished(llm(a=state(queued=now - 9.0, scheduled=now - 6.5, last_token=now - 2.0, generated=3)))
    assert running.waited_s == 2.5
    assert running.silent_s is not None
    assert 2.0 <= running.silent_s < 3.0
    assert running.generated_tokens == 3


def test_requests_come_in_the_order_of_their_arrival() -> None:
    assert [request.id for request in unfinished(llm(b=state(), a=state(), c=state()))] == ["b", "a", "c"]
