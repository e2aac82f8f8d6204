"""An engine's schedulers from the host's side: whether there is a way in, and the dials."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from engine_host.engine.vllm import releases
from engine_host.engine.vllm.live import cores
from engine_host.engine.vllm.live.boards import Boards
from engine_host.engine.vllm.live.cores import LiveCores
from engine_host.live.board import Address, CoreFacts
from engine_host.live.core_board import CoreBoard, Taken
from engine_host.live.layout import ENVIRONMENT
from engine_host.live.sample import REQUEST, DialName

RANGES = {DialName.MAX_ACTIVE_SEQS: (1, 16, 16), DialName.SPECULATIVE_TOKENS: (0, 5, 5)}
START = {name: start for name, (_, _, start) in RANGES.items()}


def config(**changes: Any) -> Any:
    scheduler = {"async_scheduling": True, "scheduler_cls": None}
    parallel = {"data_parallel_size": 1, "data_parallel_size_local": 1, "data_parallel_backend": "mp"}
    return SimpleNamespace(
        scheduler_config=SimpleNamespace(**{key: changes.get(key, value) for key, value in scheduler.items()}),
        parallel_config=SimpleNamespace(**{key: changes.get(key, value) for key, value in parallel.items()}),
    )


@pytest.fixture
def boards(monkeypatch: pytest.MonkeyPatch) -> Iterator[Boards]:
    monkeypatch.setattr(releases, "installed_version", lambda: "0.32.0")
    made = Boards()
    yield made
    made.close()


class Core:
    """What an engine core would do with its memory."""

    def __init__(self, address: Address) -> None:
        self.board = CoreBoard(address)
        self.in_force = dict(START)
        facts = CoreFacts(pid=os.getpid(), blocks=10, ranges=RANGES, missing={DialName.MAX_SCHEDULED_TOKENS: "broken"})
        self.board.open_for_samples(facts)

    def look(self) -> None:
        if (wanted := self.board.wanted()) is not None:
            self.in_force |= wanted[1]
            self.board.acknowledge(wanted[0], self.in_force)

    def publish(self, usage: float) -> None:
        states, requests = np.zeros(10, np.uint8), np.zeros(0, REQUEST)
        self.board.publish(Taken(time.time(), usage, states, requests, {}, 0, 0), self.in_force)


class Llm:
    """Asked anything, its idle cores look at what is wanted."""

    def __init__(self) -> None:
        self.cores: list[Core] = []
        self.is_mute = False

    async def is_sleeping(self) -> bool:
        if not self.is_mute:
            for core in self.cores:
                core.look()
        return False


def started(boards: Boards, llm: Llm, **changes: Any) -> Any:
    """As a build goes: its cores find their memory in the environment."""
    settings = config(**changes)
    boards.prepare(settings)
    with boards.in_environment():
        llm.cores = [Core(a) for a in msgspec.json.decode(os.environ[ENVIRONMENT], type=list[Address])]
    assert ENVIRONMENT not in os.environ
    return settings


def live_of(boards: Boards, llm: Llm, **changes: Any) -> LiveCores:
    started(boards, llm, **changes)
    found = boards.found(llm)
    assert isinstance(found, LiveCores), found
    return found


@pytest.mark.parametrize(
    ("is_async", "name"), [(True, "SteeredAsyncScheduler"), (False, "SteeredScheduler"), (None, "SteeredScheduler")]
)
def test_the_scheduler_that_vllm_would_have_taken_is_the_one_that_is_steered(
    boards: Boards, is_async: bool | None, name: str
) -> None:
    settings = started(boards, Llm(), async_scheduling=is_async)
    assert settings.scheduler_config.scheduler_cls == f"engine_host.engine.vllm.live.scheduler.{name}"


@pytest.mark.parametrize(
    ("version", "changes", "why"),
    [
        ("0.34.1", {}, "the scheduler of vLLM 0.34.1 is not known; 0.26 to 0.33 are"),
        ("0.25.1", {}, "the scheduler of vLLM 0.25.1 is not known"),
        ("dev", {}, "the scheduler of vLLM dev is not known"),
        ("0.26.0", {"scheduler_cls": "my.Scheduler"}, "the engine has a scheduler of its own, my.Scheduler"),
        ("0.33.0", {"scheduler_cls": Core}, "the engine has a scheduler of its own, Core"),
        ("0.32.0", {"data_parallel_size": 2}, "the engine has cores on other machines or in other hosts"),
        ("0.32.0", {"data_parallel_backend": "ray"}, "Ray places the engine's cores"),
        ("0.32.0", {"data_parallel_size": None}, "it could not be prepared: TypeError"),
    ],
)
def test_where_there_is_no_way_in_the_engine_starts_as_it_would_and_the_reason_is_told(
    boards: Boards, monkeypatch: pytest.MonkeyPatch, version: str, changes: dict[str, Any], why: str
) -> None:
    monkeypatch.setattr(releases, "installed_version", lambda: version)
    if changes.get("data_parallel_size", 0) is None:
        changes = {"data_parallel_size": None, "data_parallel_size_local": None}
    settings = config(**changes)
    boards.prepare(settings)
    with boards.in_environment():
        assert ENVIRONMENT not in os.environ
    reason = boards.found(Llm())
    assert isinstance(reason, str) and why in reason
    assert settings.scheduler_config.scheduler_cls == changes.get("scheduler_cls")


def test_a_core_that_has_not_found_its_memory_is_told(boards: Boards) -> None:
    boards.prepare(config())
    assert boards.found(Llm()) == "the scheduler of engine core 0 has not found the memory that it shares"


def test_the_reason_of_a_core_that_runs_without_is_told(boards: Boards) -> None:
    llm = Llm()
    started(boards, llm)
    llm.cores[0].board.tell_fault("this vLLM's scheduler is built otherwise than is known")
    assert boards.found(llm) == "this vLLM's scheduler is built otherwise than is known"


def test_an_engine_that_was_given_up_has_left_nothing(boards: Boards) -> None:
    llm = Llm()
    started(boards, llm)
    boards.close()
    assert boards.found(llm) == "its engine has ended"


async def test_dials_are_set_when_every_core_has_applied_them(boards: Boards) -> None:
    llm = Llm()
    live = live_of(boards, llm, data_parallel_size=2, data_parallel_size_local=2)
    assert {name: (span.low, span.high, span.start) for name, span in live.ranges.items()} == RANGES
    await live.set_dials({DialName.SPECULATIVE_TOKENS: 2})
    await live.set_dials({DialName.MAX_ACTIVE_SEQS: 3})
    assert [core.in_force for core in llm.cores] == [{DialName.MAX_ACTIVE_SEQS: 3, DialName.SPECULATIVE_TOKENS: 2}] * 2


async def test_the_samples_of_idle_cores_show_the_dials_in_force(boards: Boards) -> None:
    llm = Llm()
    live = live_of(boards, llm, data_parallel_size=2, data_parallel_size_local=2)
    assert live.samples() == []
    for core in llm.cores:
        core.publish(0.5)
    await live.set_dials({DialName.SPECULATIVE_TOKENS: 0})
    assert [sample.dials[DialName.SPECULATIVE_TOKENS] for sample in live.samples()] == [0, 0]
    assert [sample.engine_index for sample in live.samples()] == [0, 1]


def test_steps_of_several_cores_come_in_the_order_in_which_they_ended(boards: Boards) -> None:
    llm = Llm()
    live = live_of(boards, llm, data_parallel_size=2, data_parallel_size_local=2)
    for n in range(4):
        llm.cores[n % 2].board.add_step(float(10 - n), 0.1, 1, 1, 0, 0, 0, True)
    assert live.steps(7.5)["at"].tolist() == [8.0, 9.0, 10.0]


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({DialName.MAX_ACTIVE_SEQS: 0}, "max_active_seqs 0 is not within 1 to 16"),
        ({DialName.SPECULATIVE_TOKENS: 6}, "speculative_tokens 6 is not within 0 to 5"),
        ({DialName.MAX_SCHEDULED_TOKENS: 5}, "this engine has no dial max_scheduled_tokens: broken"),
    ],
)
async def test_a_value_that_cannot_be_is_refused_and_nothing_is_changed(
    boards: Boards, values: dict[DialName, int], why: str
) -> None:
    llm = Llm()
    live = live_of(boards, llm)
    with pytest.raises(ValueError, match=why):
        await live.set_dials({DialName.SPECULATIVE_TOKENS: 1, **values})
    assert llm.cores[0].board.wanted_seq == 0


async def test_a_core_that_does_not_answer_has_a_deadline(boards: Boards, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "_ANSWER_S", 0.05)
    llm = Llm()
    llm.is_mute = True
    live = live_of(boards, llm)
    with pytest.raises(TimeoutError, match="engine core 0 did not answer within 0 s; it applies the dials when"):
        await live.set_dials({DialName.SPECULATIVE_TOKENS: 1})


async def test_a_core_whose_part_is_off_is_not_waited_for(boards: Boards) -> None:
    llm = Llm()
    llm.is_mute = True
    live = live_of(boards, llm)
    assert live.fault is None
    llm.cores[0].board.tell_fault("a mistake of ours")
    async with asyncio.timeout(5):
        with pytest.raises(TimeoutError, match="engine core 0: a mistake of ours"):
            await live.set_dials({DialName.SPECULATIVE_TOKENS: 1})
    assert live.fault == "engine core 0: a mistake of ours"


async def test_an_engine_that_ends_meanwhile_is_not_waited_for(boards: Boards) -> None:
    llm = Llm()
    llm.is_mute = True
    live = live_of(boards, llm)
    setting = asyncio.create_task(live.set_dials({DialName.SPECULATIVE_TOKENS: 1}))
    await asyncio.sleep(0.01)
    boards.close()
    async with asyncio.timeout(5):
        with pytest.raises(TimeoutError, match="the engine has ended"):
            await setting
        with pytest.raises(TimeoutError, match="the engine has ended"):
            await live.set_dials({DialName.SPECULATIVE_TOKENS: 1})
    assert live.samples() == [] and len(live.steps(0.0)) == 0
