"""The dials in a snapshot, and why there are none."""

from __future__ import annotations

import time

from engine_host.protocol.methods import DialsSet
from engine_host.telemetry.machine import MachineSampler
from engine_host.telemetry.snapshot_taker import HostIdentity, SnapshotTaker
from engine_host.telemetry.store import TelemetryStore
from tests.unit.scripted_engine import ScriptedEngine
from tests.unit.scripted_scheduler import ScriptedScheduler
from tests.unit.switched_world import fast as fast
from tests.unit.switched_world import serving
from tests.unit.world import World


def taker(world: World) -> SnapshotTaker:
    identity = HostIdentity("host", 1, "boot", "0", time.time(), "127.0.0.1:8000", tls=False)
    return SnapshotTaker(identity, "0.32.0", world.lifecycle, TelemetryStore(), world.entry, MachineSampler())


async def test_whoever_was_told_that_a_dial_is_set_finds_it_in_the_next_snapshot() -> None:
    async with serving(ScriptedEngine(scheduler=ScriptedScheduler())) as world:
        snapshots = taker(world)
        assert snapshots.take().dials["speculative_tokens"].value == 5
        order = DialsSet(values={"speculative_tokens": 2}, reason="trying", idempotency_key="k")
        await world.lifecycle.dials.set(order, "maria")
        dial = snapshots.take().dials["speculative_tokens"]  # within the time that a snapshot is handed out again
        assert (dial.value, dial.who, dial.reason) == (2, "maria", "trying")
        assert snapshots.take().seq == 2


async def test_an_engine_whose_scheduler_cannot_be_reached_says_why() -> None:
    async with serving(ScriptedEngine(scheduler="vLLM 0.40 is too new")) as world:
        snapshot = taker(world).take()
        assert (snapshot.dials, snapshot.engine.live_unavailable_reason) == ({}, "vLLM 0.40 is too new")
