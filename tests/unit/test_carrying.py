"""Requests from one vLLM engine into the next: which, how, and what becomes of those that end meanwhile."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from engine_host.engine.port import Bound, Handling
from engine_host.engine.vllm import carry
from engine_host.engine.vllm.carriable import CarriedRequest, fate
from engine_host.engine.vllm.ledger import Ledger
from engine_host.engine.vllm.succession import Succession, succeedable

GREEDY = {
    "max_tokens": 100,
    "min_tokens": 0,
    "structured_outputs": None,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "seed": None,
    "temperature": 0.0,
    "bad_words": None,
    "prompt_logprobs": None,
    "extra_args": None,
}


class Request(msgspec.Struct):
    request_id: str
    prompt_token_ids: list[int] | None
    sampling_params: Any
    pooling_params: Any = None
    prompt_embeds: Any = None
    mm_features: Any = None
    lora_request: Any = None
    resumable: bool = False
    cache_salt: str | None = None


def request(name: str = "r", *, prompt: int = 10, **params: Any) -> Request:
    values = {**GREEDY, **params}
    return Request(name, list(range(prompt)), SimpleNamespace(**values, clone=lambda: SimpleNamespace(**values)))


def state(name: str = "r", *, tokens: int = 5, kind: str = "DELTA", parent: str | None = None) -> Any:
    return SimpleNamespace(
        request_id=name,
        external_req_id=f"ext-{name}",
        parent_req=None if parent is None else SimpleNamespace(request_id=parent),
        lora_name=None,
        queue=SimpleNamespace(put=lambda item: None),
        detokenizer=SimpleNamespace(output_token_ids=list(range(tokens))),
        output_kind=SimpleNamespace(name=kind),
        streaming_input=False,
        stats=None,
    )


class Core:
    """An engine core as its client sees it."""

    def __init__(self) -> None:
        self.sent: list[Request] = []
        self.fails_after: int | None = None

    async def add_request_async(self, sent: Request) -> None:
        if len(self.sent) == self.fails_after:
            raise RuntimeError("the core is gone")
        self.sent.append(sent)


class Llm:
    """An AsyncLLM as far as a hand-over looks at it."""

    def __init__(self, *states: Any) -> None:
        self.engine_core: Any = Core()
        self.is_dead = False
        self.aborted: list[Any] = []
        self.added: list[Any] = []
        self.output_processor = SimpleNamespace(
            request_states={one.request_id: one for one in states},
            external_req_ids=_Lists({one.external_req_id: [one.request_id] for one in states}),
            parent_requests={},
            lora_states=SimpleNamespace(request_finished=lambda *_: None),
        )

    @property
    def errored(self) -> bool:
        return self.is_dead

    def _run_output_handler(self) -> None: ...

    async def abort(self, request_id: Any, internal: bool = False) -> None:
        self.aborted.append(request_id)

    async def add_request(self, *args: Any) -> Any:
        self.added.append(args)
        return "a queue"


class _Lists(dict[str, list[str]]):
    def __missing__(self, key: str) -> list[str]:
        self[key] = []
        return self[key]


@pytest.mark.parametrize(
    ("params", "of_state", "bound", "expected"),
    [
        ({}, {}, Bound(), "carry"),
        ({"structured_outputs": object()}, {"tokens": 0}, Bound(), "carry"),
        ({"structured_outputs": object()}, {}, Bound(), "drain"),
        ({"structured_outputs": object()}, {"kind": "FINAL_ONLY"}, Bound(), "replay"),
        ({"seed": 7, "temperature": 0.8}, {}, Bound(), "drain"),
        ({"seed": 7}, {}, Bound(), "carry"),
        ({"presence_penalty": 0.1}, {"kind": "FINAL_ONLY"}, Bound(max_tokens=109), "drain"),
        ({}, {}, Bound(max_tokens=109), "drain"),
        ({}, {}, Bound(max_tokens=110), "carry"),
        ({}, {}, Bound(reason="the quantization changes"), "drain"),
        ({}, {"tokens": 0}, Bound(reason="the quantization changes"), "replay"),
        ({}, {"kind": "FINAL_ONLY"}, Bound(reason="the quantization changes"), "replay"),
        ({}, {"kind": "FINAL_ONLY"}, Bound(reason="the model changes", is_same_tokenizer=False), "drain"),
    ],
)
def test_what_becomes_of_a_request(
    params: dict[str, Any], of_state: dict[str, Any], bound: Bound, expected: str
) -> None:
    assert fate(state(**of_state), request(**params), bound) == expected


@pytest.mark.parametrize(
    "whole", [{"mm_features": [1]}, {"lora_request": object()}, {"prompt_embeds": object(), "prompt_token_ids": None}]
)
def test_what_another_engine_cannot_be_sent_is_not_said_to_start_over(whole: dict[str, Any]) -> None:
    of_it = msgspec.structs.replace(request(), **whole)
    assert fate(state(tokens=0, kind="FINAL_ONLY"), of_it, Bound()) == "drain"


def test_a_request_that_nobody_remembers_is_left_to_the_old_engine() -> None:
    assert fate(state(kind="FINAL_ONLY"), None, Bound()) == "drain"


async def test_what_is_forecast_is_what_is_taken() -> None:
    llm = Llm(state("goes"), state("grammar"), state("whole", kind="FINAL_ONLY"))
    ledger = Ledger(llm)
    ledger.remember(request("goes"))
    ledger.remember(request("grammar", structured_outputs=object()))
    ledger.remember(request("whole", structured_outputs=object()))
    assert carry.handling(ledger, Bound()) == Handling(carry=1, drain=1, replay=1)
    taken = carry.take(ledger, llm, Bound(), set())
    assert [(item.request_id, item.is_replayed) for item in taken] == [("goes", False), ("whole", True)]
    assert list(llm.output_processor.request_states) == ["grammar"]
    assert list(llm.output_processor.external_req_ids) == ["ext-grammar"]


async def test_a_carried_request_goes_on_behind_its_tokens_with_what_is_left_of_its_limit() -> None:
    llm = Llm()
    ledger = Ledger(llm)
    await carry.adopt(ledger, llm, [CarriedRequest("r", state(tokens=5), request(), is_replayed=False)])
    (sent,) = llm.engine_core.sent
    assert sent.prompt_token_ids == [*range(10), *range(5)] and sent.sampling_params.max_tokens == 95
    assert ledger.unfinished()[0][2].prompt_token_ids == [*range(10)], "another switch begins from the original"


@pytest.mark.parametrize("has_begun", [True, False])
async def test_a_carried_request_has_waited_what_it_waited_where_it_began(has_begun: bool) -> None:
    stats_of = pytest.importorskip("vllm.v1.metrics.stats")
    from vllm.v1.engine import EngineCoreEvent, EngineCoreEventType

    now = time.monotonic()
    stats = stats_of.RequestStateStats(arrival_time=time.time() - 9.0)
    if has_begun:
        stats.queued_ts, stats.scheduled_ts = now - 8.0, now - 6.0
    carried = state()
    carried.stats = stats
    for _ in range(2):  # from engine to engine to engine
        llm = Llm()
        await carry.adopt(Ledger(llm), llm, [CarriedRequest("r", carried, request(), is_replayed=False)])
    queued, scheduled = EngineCoreEventType.QUEUED, EngineCoreEventType.SCHEDULED
    events = [EngineCoreEvent(queued, now), EngineCoreEvent(scheduled, now + 1.0)]
    lora = SimpleNamespace(request_waiting=lambda *_: None, request_running=lambda *_: None)
    stats_of.IterationStats().update_from_events("r", events, False, stats, lora, None)
    assert stats.scheduled_ts - stats.queued_ts == pytest.approx(2.0 if has_begun else 10.0, abs=0.5)


async def test_a_release_that_keeps_its_times_otherwise_is_switched_all_the_same() -> None:
    class Slotted:
        __slots__ = ("arrival_time", "queued_ts")

    slotted = Slotted()
    slotted.arrival_time, slotted.queued_ts = time.time(), 0.0
    for stats in (SimpleNamespace(), slotted):
        carried, llm = state(), Llm()
        carried.stats = stats
        await carry.adopt(Ledger(llm), llm, [CarriedRequest("r", carried, request(), is_replayed=False)])
        assert len(llm.engine_core.sent) == 1


@pytest.mark.parametrize("answer", ["never", "raises"])
async def test_a_core_that_does_not_stop_its_scheduler_does_not_stop_the_switch(
    answer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(carry, "_FREEZE_S", 0.01)

    async def pause_generation(**_: Any) -> None:
        if answer == "raises":
            raise RuntimeError("the core is gone")
        await asyncio.Event().wait()

    async with asyncio.timeout(10):
        await carry.freeze(SimpleNamespace(pause_generation=pause_generation, engine_core=None))


async def test_an_engine_that_fails_as_it_adopts_keeps_none_of_the_requests() -> None:
    llm = Llm()
    llm.engine_core.fails_after = 1
    items = [CarriedRequest(name, state(name), request(name), is_replayed=False) for name in ("one", "two")]
    with pytest.raises(RuntimeError, match="the core is gone"):
        await carry.adopt(Ledger(llm), llm, items)
    assert not llm.output_processor.request_states


async def test_a_client_that_hangs_up_between_two_engines_is_given_up() -> None:
    old, new = Llm(), Llm()
    succession = Succession(old)
    items = [
        CarriedRequest(name, state(name, parent=parent), request(name), False, succession.given_up)
        for name, parent in (("stays", None), ("left", None), ("0_of_two", "of_two"))
    ]
    await old.abort("left", internal=True)
    await old.abort("of_two", internal=True)
    assert [item.is_given_up for item in items] == [False, True, True]
    await carry.adopt(Ledger(new), new, items[1:2])
    assert new.aborted == [["left"]], "it hung up while the new engine was told of it"


async def test_a_retired_engine_looks_alive_to_its_app_and_its_requests_wait_for_the_successor() -> None:
    old, new = succeedable(Llm)(), Llm()
    succession = Succession(old)
    old.is_dead = True  # it has been shut down
    assert not old.errored
    asked = asyncio.create_task(old.add_request("id", "prompt"))
    await asyncio.sleep(0)
    assert not asked.done()
    succession.pass_to(new)
    assert await asked == "a queue" and new.added == [("id", "prompt")]
    await old.abort("id")
    assert new.aborted == ["id"]


async def test_what_reaches_a_retired_engine_without_a_successor_ends_with_the_reason() -> None:
    old = succeedable(Llm)()
    succession = Succession(old)
    asked = asyncio.create_task(old.add_request("id", "prompt"))
    await asyncio.sleep(0)
    succession.end(RuntimeError("no engine could be started"))
    with pytest.raises(RuntimeError, match="no engine could be started"):
        await asked
    await old.abort("id")


def test_an_engine_that_has_not_handed_over_tells_its_death() -> None:
    llm = succeedable(Llm)()
    llm.is_dead = True
    assert llm.errored
