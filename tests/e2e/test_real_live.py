"""The scheduler of a real engine, looked into and steered while it works. The engine belongs to this process, so that
every sample can be held against what vLLM itself reports."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

from engine_host.engine.port import StepStats
from engine_host.engine.vllm.adapter import VllmEngine
from engine_host.engine.vllm.live.cores import LiveCores
from engine_host.live.sample import BlockState, DialName, LiveSample, RequestState
from engine_host.profiles import ProfileDirectory

from .conftest import SMALL, Slow

pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(600),
    pytest.mark.asyncio(loop_scope="module"),
]

PROMPTS = [f"{n} one two three four five six seven eight nine ten {n} one two three four five" for n in range(16)]


class Engine:
    """One engine, the statistics of its steps and every sample of it that was there to see."""

    def __init__(self, engine: VllmEngine, stats: list[StepStats]) -> None:
        self.engine, self.stats = engine, stats
        self.samples: list[LiveSample] = []

    @property
    def live(self) -> LiveCores:
        found = self.engine.live
        assert isinstance(found, LiveCores), found
        return found

    async def look(self) -> None:
        """Until cancelled."""
        while True:
            [sample] = self.live.samples() or [None]
            if sample is not None and (not self.samples or self.samples[-1].seq != sample.seq):
                self.samples.append(sample)
            await asyncio.sleep(0.01)

    @asynccontextmanager
    async def looking(self) -> AsyncIterator[list[LiveSample]]:
        self.samples = []
        looking = asyncio.create_task(self.look())
        try:
            yield self.samples
            await asyncio.sleep(0.5)
        finally:
            looking.cancel()

    async def generate(self, prompt: str, name: str, tokens: int) -> Sequence[int]:
        from vllm import SamplingParams

        params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
        last: Any = None
        async for output in self.engine._llm.generate(prompt, params, name):
            last = output
        found: Sequence[int] = last.outputs[0].token_ids
        return found

    async def all(self, tokens: int, prompts: Sequence[str] = PROMPTS) -> list[Sequence[int]]:
        name = f"{time.monotonic_ns()}"
        return await asyncio.gather(*(self.generate(prompt, f"{name}-{n}", tokens) for n, prompt in enumerate(prompts)))

    async def all_until(self, condition: Callable[[], object], tokens: int, prompts: Sequence[str] = PROMPTS) -> None:
        """Again and again: a quick engine is over before a sample, of which there are ten a second, has shown it."""
        async with asyncio.timeout(120):
            while not condition():
                await self.all(tokens, prompts)

    def totals(self, since: int = 0) -> tuple[int, int]:
        """`(drafted, accepted)` of vLLM's own statistics."""
        drafts = [step.speculation for step in self.stats[since:] if step.speculation is not None]
        return sum(step.drafted for step in drafts), sum(step.accepted for step in drafts)

    async def rest(self) -> LiveSample:
        """The sample after the last step."""
        async with asyncio.timeout(20):
            while True:
                [sample] = self.live.samples()
                if not len(sample.requests):
                    return sample
                await asyncio.sleep(0.05)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(model: None, slow: Slow) -> AsyncIterator[Engine]:
    arguments = ProfileDirectory(SMALL).load("live").to_arguments()
    made = VllmEngine(arguments, lambda names: None)
    stats: list[StepStats] = []
    await made.start(stats.append)
    try:
        yield Engine(made, stats)
    finally:
        await made.stop(5.0)


def in_use(sample: LiveSample) -> float:
    return float((sample.states >= BlockState.ACTIVE).sum() / len(sample.states))


async def test_greedy_output_is_the_same_while_k_and_the_concurrency_move(engine: Engine, slow: Slow) -> None:
    undisturbed = await engine.all(60)
    moves: list[dict[DialName, int]] = [
        {DialName.SPECULATIVE_TOKENS: 0, DialName.MAX_ACTIVE_SEQS: 16},
        {DialName.MAX_ACTIVE_SEQS: 2},
        {DialName.SPECULATIVE_TOKENS: 2},
        {DialName.MAX_ACTIVE_SEQS: 16},
        {DialName.SPECULATIVE_TOKENS: 5},
    ]
    k = 5
    with slow(0.05):
        working = asyncio.create_task(engine.all(60))
        for move in moves:
            await engine.live.set_dials(move)
            assert not working.done(), "the dials were moved after the requests had ended"
            before, k = time.monotonic(), move.get(DialName.SPECULATIVE_TOKENS, k)
            while not len(found := engine.live.steps(before)) or found[-1]["k"] != k:
                assert not working.done(), f"no step drafted {k} a request"
                await asyncio.sleep(0.005)
    assert await working == undisturbed


async def test_fewer_run_at_once_when_fewer_are_admitted(engine: Engine) -> None:
    await engine.live.set_dials({DialName.MAX_ACTIVE_SEQS: 2})
    async with engine.looking() as samples:
        await engine.all_until(lambda: any(s.waiting_by_reason.get("capacity") for s in samples), 8, PROMPTS[:6])
    await engine.live.set_dials({DialName.MAX_ACTIVE_SEQS: 16})
    running = [int((sample.requests["state"] == RequestState.RUNNING).sum()) for sample in samples]
    assert max(running) == 2


async def test_block_counts_are_vllms_own_gauge_at_every_sample(engine: Engine) -> None:
    async with engine.looking() as samples:
        await engine.all_until(lambda: len({sample.usage for sample in samples}) > 3, 40)
    for sample in samples:
        assert len(sample.states) == engine.engine.facts.total_blocks
        assert in_use(sample) == pytest.approx(sample.usage, abs=1e-9)
        held = int(sample.requests["blocks"].sum())
        assert held >= int((sample.states >= BlockState.ACTIVE).sum())
    assert samples[-1].usage == 0.0 and (samples[-1].states == BlockState.CACHED).any()


async def test_drafts_of_the_requests_sum_up_to_vllms_totals(engine: Engine) -> None:
    together: list[LiveSample] = []
    async with asyncio.timeout(120):
        while not together:  # until a sample shows all of them, so that their sums are the totals
            before, since = await engine.rest(), len(engine.stats)
            async with engine.looking() as samples:
                await engine.all(60)
                after = await engine.rest()
            drafted, accepted = engine.totals(since)
            assert after.drafted_total - before.drafted_total == drafted
            assert after.accepted_total - before.accepted_total == accepted > 0
            together = [s for s in samples if len(s.requests) == len(PROMPTS)]
    for sample in together:
        assert int(sample.requests["drafted"].sum()) == sample.drafted_total - before.drafted_total
        assert int(sample.requests["accepted"].sum()) == sample.accepted_total - before.accepted_total
    steps = engine.live.steps(0.0)
    assert (steps["accepted"] <= steps["drafted"]).all() and (np.diff(steps["at"]) > 0).all()


async def test_a_preemption_is_shown_and_counted(engine: Engine, slow: Slow) -> None:
    """The KV cache holds 2,144 tokens; sixteen requests of 160 want more."""
    since = len(engine.stats)
    async with engine.looking() as samples:
        with slow(0.05):
            await engine.all(160)
    told = sum(step.preemptions for step in engine.stats[since:])
    assert told > 0
    assert any(sample.waiting_by_reason.get("preempted") for sample in samples)
    counted: dict[bytes, int] = {}
    for sample in samples:
        for record in sample.requests:
            counted[record["id"]] = max(counted.get(record["id"], 0), int(record["preemptions"]))
            if record["state"] == RequestState.PREEMPTED:
                assert record["blocks"] == 0 and record["preemptions"] > 0
        assert in_use(sample) == pytest.approx(sample.usage, abs=1e-9)
    assert 0 < sum(counted.values()) <= told


async def test_an_idle_engine_acknowledges_at_once(engine: Engine) -> None:
    await engine.rest()
    for k in (0, 5):
        began = time.monotonic()
        await engine.live.set_dials({DialName.SPECULATIVE_TOKENS: k})
        assert time.monotonic() - began < 1.0
        assert engine.live.samples()[0].dials[DialName.SPECULATIVE_TOKENS] == k


async def test_an_ended_request_gives_its_blocks_back_and_its_client_an_error(engine: Engine, slow: Slow) -> None:
    with slow(0.05):
        generating = asyncio.create_task(engine.generate(PROMPTS[0], "to-be-ended", 900))
        async with asyncio.timeout(30):
            while not len(engine.live.samples()[0].requests):
                await asyncio.sleep(0.02)
        assert engine.engine.abort("to-be-ended", "An operator has ended this request.")
        with pytest.raises(Exception, match=r"An operator has ended this request\."):
            await generating
    assert (await engine.rest()).usage == 0.0
    assert not engine.engine.abort("to-be-ended", "again")
