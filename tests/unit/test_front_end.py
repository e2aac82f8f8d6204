"""What vLLM's front end knows of its requests, in our words."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest

from engine_host.engine.vllm.front_end import end, unfinished


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


class Queue:
    def __init__(self) -> None:
        self.items: list[Any] = []

    def put(self, item: Any) -> None:
        self.items.append(item)


class Core:
    def __init__(self) -> None:
        self.aborted: list[list[str]] = []

    async def abort_requests_async(self, request_ids: list[str]) -> None:
        self.aborted.append(request_ids)


def front_end_with(*requests: tuple[str, str, Queue, Any]) -> Any:
    """Of `(id in the engine, id that the API shows, stream, parent)`."""
    states = {
        key: SimpleNamespace(external_req_id=shown, queue=queue, parent_req=parent, lora_name=None)
        for key, shown, queue, parent in requests
    }
    external: dict[str, list[str]] = {}
    for key, shown, _, _ in requests:
        external.setdefault(shown, []).append(key)
    processor = SimpleNamespace(
        request_states=states,
        external_req_ids=external,
        parent_requests={parent.request_id: parent for *_, parent in requests if parent is not None},
        lora_states=SimpleNamespace(request_finished=lambda *_: None),
    )
    return SimpleNamespace(output_processor=processor, engine_core=Core())


@pytest.mark.parametrize("name", ["cmpl-a", "cmpl-a-1234"])
async def test_one_request_is_ended_with_an_error_by_either_of_its_names(name: str) -> None:
    mine, other = Queue(), Queue()
    llm = front_end_with(("cmpl-a-1234", "cmpl-a", mine, None), ("cmpl-b-5678", "cmpl-b", other, None))
    error = ValueError("ended by an operator")
    assert end(llm, name, error)
    assert (mine.items, other.items) == ([error], [])
    assert list(llm.output_processor.request_states) == ["cmpl-b-5678"]
    assert llm.output_processor.external_req_ids == {"cmpl-b": ["cmpl-b-5678"]}
    await asyncio.sleep(0)
    assert llm.engine_core.aborted == [["cmpl-a-1234"]]


@pytest.mark.parametrize("name", ["cmpl-a", "1_cmpl-a"])
async def test_n_choices_end_together_and_their_client_is_told_once(name: str) -> None:
    queue, parent = Queue(), SimpleNamespace(request_id="cmpl-a-1234")
    llm = front_end_with(("0_cmpl-a", "cmpl-a", queue, parent), ("1_cmpl-a", "cmpl-a", queue, parent))
    error = ValueError("ended by an operator")
    assert end(llm, name, error)
    assert queue.items == [error]
    assert not llm.output_processor.request_states and not llm.output_processor.parent_requests
    await asyncio.sleep(0)
    assert llm.engine_core.aborted == [["0_cmpl-a", "1_cmpl-a"]]


async def test_there_may_be_no_such_request() -> None:
    llm = front_end_with(("cmpl-a-1234", "cmpl-a", Queue(), None))
    assert not end(llm, "cmpl-c", ValueError("ended by an operator"))
    await asyncio.sleep(0)
    assert not llm.engine_core.aborted and len(llm.output_processor.request_states) == 1


async def test_the_blocks_of_a_core_that_has_just_died_need_no_freeing(caplog: pytest.LogCaptureFixture) -> None:
    llm = front_end_with(("cmpl-a-1234", "cmpl-a", Queue(), None))

    async def dead(request_ids: list[str]) -> None:
        raise ConnectionError

    llm.engine_core.abort_requests_async = dead
    assert end(llm, "cmpl-a", ValueError("ended by an operator"))
    await asyncio.sleep(0.01)
    assert not caplog.records
