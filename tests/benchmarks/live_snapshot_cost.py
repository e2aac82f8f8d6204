"""What snapshots at 10 Hz cost the host with a large engine: `python -m tests.benchmarks.live_snapshot_cost`.

256 running requests and 60,000 KV blocks, of which the scheduler's word lies in real shared memory and is new for every
snapshot, with step statistics at 50 Hz between them. Counted is the processor time of this process for what the host
does: taking the samples from the memory, making the snapshot, writing its frame; then the same with the map of the
blocks and the list of all requests, as two consoles with these pages open ask for them. Exit 1 above the budget.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import os
import sys
import time
from collections.abc import Callable

import numpy as np

from engine_host.engine.port import Backlog, EngineFacts, FrontRequest, SpeculationStep, StepStats
from engine_host.engine.vllm.live.cores import LiveCores
from engine_host.inside import Inside
from engine_host.live.board import Board, CoreFacts
from engine_host.live.core_board import CoreBoard, Taken
from engine_host.live.dial import DialName
from engine_host.live.sample import REQUEST, BlockState, RequestState
from engine_host.protocol.envelope import encode_notification, encode_result
from engine_host.protocol.methods import KvMapParams, RequestsList
from engine_host.protocol.snapshot import State
from engine_host.telemetry.machine import MachineSampler
from engine_host.telemetry.snapshot_taker import HostIdentity, SnapshotTaker
from engine_host.telemetry.store import TelemetryStore
from tests.unit.scripted_engine import FACTS, ScriptedEngine
from tests.unit.world import World

REQUESTS = 256
BLOCKS = 60_000
HZ = 10
STEPS_PER_SNAPSHOT = 5
BUDGET = 0.03
"""Of one core, for the snapshots."""

RANGES = {
    DialName.MAX_ACTIVE_SEQS: (1, 256, 256),
    DialName.MAX_SCHEDULED_TOKENS: (16, 8192, 8192),
    DialName.SPECULATIVE_TOKENS: (0, 5, 5),
}


class Core:
    """Stands in for the engine core: publishes another state every time, into the memory that the host reads."""

    def __init__(self) -> None:
        self.board = Board(0)
        self._core = CoreBoard(self.board.address)
        self._core.open_for_samples(CoreFacts(pid=os.getpid(), blocks=BLOCKS, ranges=RANGES))
        self._random = np.random.default_rng(0)
        self._records = np.zeros(REQUESTS, REQUEST)
        self._records["id"] = [f"chatcmpl-{n:032x}-{n:08x}" for n in range(REQUESTS)]
        self._records["state"] = RequestState.RUNNING
        self._records["blocks"] = 150
        self._records["computed_tokens"] = 4_700
        self._records["arrived"] = time.time() - 30

    def publish(self) -> None:
        states = self._random.integers(0, len(BlockState), BLOCKS, np.uint8)
        usage = float((states >= BlockState.ACTIVE).mean())
        self._records["generated_tokens"] += 1
        dials = {name: span[2] for name, span in RANGES.items()}
        self._core.publish(Taken(time.time(), usage, states, self._records, {"capacity": 0}, 0, 0), dials)
        self._core.add_step(time.monotonic(), 0.02, REQUESTS, REQUESTS * 6, REQUESTS * 5, REQUESTS * 3, 5, True)


class LargeEngine(ScriptedEngine):
    """Scripted but for its scheduler, and with the front end's own look at its requests."""

    @property
    def facts(self) -> EngineFacts:
        return dataclasses.replace(FACTS, total_blocks=BLOCKS, capacity_tokens=(BLOCKS + 1) * 32)

    def backlog(self) -> Backlog:
        now = time.time()
        return Backlog(len(self.front), sorted(now - one.arrived for one in self.front if one.silent_s is None))


def front(n: int) -> FrontRequest:
    return FrontRequest(f"chatcmpl-{n:032x}-{n:08x}", time.time() - 30, 0.5, 0.02, 4_000, 700, 1_024)


def a_step() -> StepStats:
    by_position = [REQUESTS] * 5
    speculation = SpeculationStep(REQUESTS, REQUESTS * 5, REQUESTS * 3, by_position, by_position)
    return StepStats(0, running=REQUESTS, waiting=0, waiting_deferred=0, kv_usage=0.5, generation_tokens=REQUESTS * 4,
                     speculation=speculation, itl_s=[0.02] * REQUESTS)  # fmt: skip


class Cost:
    """Processor time of one kind of work."""

    def __init__(self, name: str, work: Callable[[], bytes]) -> None:
        self.name, self._work = name, work
        self._spent_s: list[float] = []
        self.size = 0

    def once(self) -> None:
        began = time.thread_time()
        self.size = len(self._work())
        self._spent_s.append(time.thread_time() - began)

    @property
    def share(self) -> float:
        """Of one core, at `HZ`."""
        return float(np.mean(self._spent_s)) * HZ

    def __str__(self) -> str:
        spent = np.array(self._spent_s) * 1e3
        return (
            f"{self.name:<16} {self.share:6.2%} of a core   {spent.mean():5.2f} ms each, p95 "
            f"{np.percentile(spent, 95):5.2f} ms   frame {self.size / 1e3:6.1f} kB"
        )


async def measure(seconds: float) -> list[Cost]:
    core = Core()
    core.publish()
    engine = LargeEngine(scheduler=LiveCores([core.board], None), front=[front(n) for n in range(REQUESTS)])  # type: ignore[arg-type]
    world, store = World(engine), TelemetryStore()
    life = asyncio.create_task(world.lifecycle.run())
    await world.until_state(State.SERVING)
    store.engine_serves()
    identity = HostIdentity("host", os.getpid(), "boot", "0", time.time(), "127.0.0.1:8000", tls=False)
    taker = SnapshotTaker(identity, "0.32.0", world.lifecycle, store, world.entry, MachineSampler())
    inside = Inside(world.lifecycle, store)
    costs = [
        Cost("snapshot", lambda: encode_notification("telemetry", taker.take())),
        Cost("once a second", lambda: (taker.keep_up(), b"")[1]),  # type: ignore[func-returns-value]
        Cost("block map", lambda: encode_result(1, inside.kv_map(KvMapParams()))),
        Cost("request list", lambda: encode_result(1, inside.requests(RequestsList()))),
    ]
    snapshot, second, *pages = costs
    for tick in range(round(seconds * HZ)):
        core.publish()
        for _ in range(STEPS_PER_SNAPSHOT):
            store.record(a_step())
        await asyncio.sleep(1 / HZ)
        snapshot.once()
        if tick % HZ == 0:
            second.once()
        for page in pages:
            page.once()
    await world.lifecycle.stop(0.0)
    await life
    return costs


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--seconds", type=float, default=20.0)
    costs = asyncio.run(measure(arguments.parse_args().seconds))
    for cost in costs:
        print(cost)
    share = costs[0].share + costs[1].share / HZ
    print(f"snapshots at {HZ} Hz: {share:.2%} of a core, budget {BUDGET:.0%}")
    return 0 if share < BUDGET else 1


if __name__ == "__main__":
    sys.exit(main())
