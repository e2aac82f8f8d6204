"""What a snapshot says of speculation, with a scheduler to look into and without."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import numpy as np
import pytest

from engine_host.engine.port import SpeculationStep, StepStats
from engine_host.live.sample import STEP, DialName
from engine_host.protocol.snapshot import State
from engine_host.protocol.speculation import Speculation
from engine_host.telemetry.machine import MachineSampler
from engine_host.telemetry.snapshot_taker import HostIdentity, SnapshotTaker
from engine_host.telemetry.store import TelemetryStore
from tests.unit.scripted_engine import ScriptedEngine
from tests.unit.scripted_scheduler import ScriptedScheduler, live_sample
from tests.unit.world import World


class Looked:
    """A snapshot taker over a scripted engine that serves."""

    def __init__(self, engine: ScriptedEngine) -> None:
        self.world = World(engine)
        self.store = TelemetryStore()
        identity = HostIdentity("here", 1, "boot", "0", time.time(), "localhost:8000", tls=False)
        self.taker = SnapshotTaker(
            identity, "0.32.0", self.world.lifecycle, self.store, self.world.entry, MachineSampler()
        )

    async def start(self) -> None:
        self._run = asyncio.create_task(self.world.lifecycle.run())
        await self.world.until_state(State.SERVING)

    async def stop(self) -> None:
        await self.world.lifecycle.stop(0.0)
        await self._run

    def speculation(self) -> Speculation:
        return self.taker.take().speculation


def decoded(k: int, took_s: float, began: float) -> np.ndarray:
    """Ten seconds of decode steps of eight requests."""
    steps = np.zeros(int(10 / took_s), STEP)
    steps["at"] = began + took_s * np.arange(len(steps))
    steps["took_s"], steps["requests"], steps["k"], steps["is_decode"] = took_s, 8, k, 1
    steps["drafted"], steps["accepted"] = 8 * k, 8 * min(k, 2)
    return steps


DRAFTS = StepStats(0, speculation=SpeculationStep(800, 4000, 1600, [800] * 5, [800, 800, 0, 0, 0]))


@pytest.fixture
async def served() -> AsyncIterator[Looked]:
    looked = Looked(ScriptedEngine(scheduler=ScriptedScheduler()))
    await looked.start()
    yield looked
    await looked.stop()


async def test_speed_up_and_recommendation_are_in_the_snapshot(served: Looked) -> None:
    now = time.monotonic()
    scheduler = served.world.made[0].scheduler
    assert isinstance(scheduler, ScriptedScheduler)
    served.store.record(DRAFTS)
    scheduler.newest = [live_sample(dials={DialName.SPECULATIVE_TOKENS: 5})]
    scheduler.ran = np.concatenate(
        [decoded(0, 0.01, now - 40), decoded(2, 0.012, now - 25), decoded(5, 0.03, now - 11)]
    )
    read = served.speculation()
    assert read.k == 5
    assert read.estimated_speedup == pytest.approx(1.0, abs=0.01)
    assert read.recommendation is not None
    assert (read.recommendation.k, read.recommendation.concurrency) == (2, 8)
    assert read.recommendation.gain == pytest.approx(2.5, abs=0.01)


async def test_steps_are_kept_that_the_scheduler_has_dropped_while_nobody_looked(served: Looked) -> None:
    now = time.monotonic()
    scheduler = served.world.made[0].scheduler
    assert isinstance(scheduler, ScriptedScheduler)
    served.store.record(DRAFTS)
    scheduler.ran = np.concatenate([decoded(0, 0.01, now - 40), decoded(2, 0.012, now - 25)])
    served.taker.keep_up()
    scheduler.ran = decoded(5, 0.03, now - 11)
    read = served.speculation()
    assert read.recommendation is not None
    assert read.recommendation.k == 2


async def test_without_a_scheduler_the_windows_stay_and_the_reason_is_said() -> None:
    looked = Looked(ScriptedEngine(scheduler="vLLM 0.40 is not known here"))
    await looked.start()
    looked.store.record(DRAFTS)
    read = looked.speculation()
    assert read.windows["10s"].mean_acceptance_length == 3.0
    assert (read.k, read.estimated_speedup) == (5, None)
    assert read.recommendation is not None
    assert read.recommendation.k is None
    assert "vLLM 0.40 is not known here" in read.recommendation.text
    await looked.stop()


async def test_before_an_engine_serves_nothing_is_said() -> None:
    read = Looked(ScriptedEngine()).speculation()
    assert (read.k, read.recommendation, read.windows) == (None, None, {})
