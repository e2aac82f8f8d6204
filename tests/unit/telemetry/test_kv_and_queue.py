"""KV cache and queue of a snapshot, with and without a scheduler to look into."""

from __future__ import annotations

import time

import pytest

from engine_host.engine.port import StepStats
from engine_host.live.sample import LiveSample
from engine_host.protocol.snapshot import Kv, Queue
from engine_host.telemetry.gauges import HUNG_AFTER_S, STUCK_AFTER_S
from engine_host.telemetry.kv_and_queue import KvAndQueue
from engine_host.telemetry.store import TelemetryStore
from tests.unit.scripted_engine import ScriptedEngine
from tests.unit.scripted_scheduler import ScriptedScheduler, block_states, front_request, live_sample, request_records


class Bench:
    """An engine whose statistics say 2 running, 3 waiting, half of the KV cache."""

    def __init__(self, *samples: LiveSample, running: int = 2, waiting: int = 3) -> None:
        self.now = 1_000.0
        self.store = TelemetryStore(lambda: self.now)
        self.engine = ScriptedEngine(unfinished=running + waiting)
        if samples:
            self.engine.scheduler = ScriptedScheduler(newest=list(samples))
        self.parts = KvAndQueue(self.store, lambda: self.now)
        self.store.engine_serves()
        self.store.record(StepStats(0, running=running, waiting=waiting, kv_usage=0.5))

    def read(self) -> tuple[Kv, Queue]:
        return self.parts.read(self.engine, time.time())


WAITING = {"id": "w", "state": 0, "prompt_tokens": 10}


def test_without_a_scheduler_the_step_statistics_are_told_and_the_rest_is_unknown() -> None:
    kv, queue = Bench().read()
    assert (kv.usage, kv.blocks.total, kv.blocks.active) == (0.5, 100, 50)
    assert (kv.blocks.cached, kv.blocks.free, kv.blocks.shared, kv.internal_waste) == (None, None, None, None)
    assert (queue.running, queue.waiting) == (2, 3)


def test_with_one_its_word_is_told_in_one_piece() -> None:
    sample = live_sample(
        request_records({"id": "a", "blocks": 40, "computed_tokens": 640}, WAITING),
        block_states(shared=10, active=30, cached=20, free=40),
        waiting_by_reason={"capacity": 1},
    )
    kv, queue = Bench(sample).read()
    assert (kv.usage, kv.blocks.active, kv.blocks.shared, kv.blocks.cached, kv.blocks.free) == (0.4, 40, 10, 20, 40)
    assert kv.internal_waste == pytest.approx(0.5, abs=0.01)
    assert (queue.running, queue.waiting, queue.waiting_by_reason) == (1, 1, {"capacity": 1})
    assert queue.oldest_wait_s == pytest.approx(1.0, abs=0.5)


def test_how_many_of_the_longest_requests_fit() -> None:
    assert Bench().read()[0].longest_requests == 3200 / 2048


def test_a_last_word_that_lies_behind_the_steps_is_not_told() -> None:
    kv, _ = Bench(live_sample(states=block_states(active=99, free=1), at=time.time() - 30)).read()
    assert kv.usage == 0.5


def test_the_fullest_core_is_the_usage() -> None:
    kv, _ = Bench(
        live_sample(states=block_states(active=90, free=10)),
        live_sample(states=block_states(active=10, free=90), engine_index=1),
    ).read()
    assert (kv.usage, kv.usage_by_engine) == (0.9, [0.9, 0.1])


def test_a_core_that_rests_beside_one_that_works_is_believed() -> None:
    rests = live_sample(states=block_states(cached=10, free=90), engine_index=1, at=time.time() - 3_600)
    kv, _ = Bench(live_sample(states=block_states(active=90, free=10)), rests).read()
    assert (kv.blocks.active, kv.blocks.cached) == (90, 10)


def test_pressure_is_forecast_from_what_was_seen_once_a_second() -> None:
    bench = Bench()
    for second in range(8):
        bench.now = 1_000.0 + second
        bench.store.record(StepStats(0, running=2, waiting=3, kv_usage=0.5 + 0.05 * second))
        bench.parts.keep_up(bench.engine)
    kv, _ = bench.read()
    assert kv.full_in_s == pytest.approx(3.0)
    assert kv.full_rate_window_s == 10.0
    bench.parts.keep_up(ScriptedEngine())  # another engine: nothing is known of its cache
    assert bench.read()[0].full_in_s is None


def test_a_request_that_can_never_be_scheduled_is_stuck_at_once_and_named() -> None:
    """Field case 6."""
    large = {"id": "large", "state": 0, "prompt_tokens": 9_000}
    sample = live_sample(request_records(WAITING, large), waiting_by_reason={"capacity": 2})
    _, queue = Bench(sample, running=0, waiting=2).read()
    assert (queue.stalled, queue.stalled_reason) == (True, "stuck")
    assert queue.stalled_text == (
        "the request large can never be scheduled: its prompt has 9,000 tokens, the KV cache holds 3,200"
    )


def test_it_is_named_without_a_scheduler_too() -> None:
    bench = Bench(running=0, waiting=1)
    bench.engine.front = [front_request("large", prompt=9_000)]
    _, queue = bench.read()
    assert queue.stalled_text is not None
    assert "the request large can never be scheduled" in queue.stalled_text


def test_as_long_as_others_run_nothing_is_stalled() -> None:
    large = {"id": "large", "state": 0, "prompt_tokens": 9_000}
    sample = live_sample(request_records({"id": "a"}, large), waiting_by_reason={"capacity": 1})
    assert not Bench(sample, running=1, waiting=1).read()[1].stalled


def test_a_queue_that_does_not_move_is_stuck_without_anyone_to_blame() -> None:
    bench = Bench(running=0, waiting=3)
    bench.read()
    bench.now += STUCK_AFTER_S + 1
    bench.store.record(StepStats(0, running=0, waiting=3, kv_usage=0.0))
    _, queue = bench.read()
    assert (queue.stalled_reason, queue.stalled_text) == ("stuck", "requests wait and none runs")


def test_an_engine_that_hangs_says_since_when() -> None:
    """Field case 7."""
    bench = Bench()
    bench.read()
    bench.now += HUNG_AFTER_S + 1
    _, queue = bench.read()
    assert queue.stalled_reason == "hung"
    assert queue.stalled_text == "requests run and no token comes; the last step was 31 s ago"


def test_without_an_engine_nothing_is_known() -> None:
    kv, queue = Bench().parts.read(None, time.time())
    assert kv == Kv()
    assert queue.running is None
