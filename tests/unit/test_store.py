"""The telemetry store: rates from deltas, ratios with their window, memory that does not grow."""

from dataclasses import dataclass

import pytest

from engine_host.engine.port import Backlog, SpeculationStep, StepStats
from engine_host.telemetry.store import SERIES, SPAN_S, TelemetryStore

IDLE = Backlog(0)
BUSY = Backlog(3, (1.5,))


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(clock: Clock) -> TelemetryStore:
    return TelemetryStore(clock)


def step(**values: object) -> StepStats:
    return StepStats(engine_index=values.pop("engine_index", 0), **values)  # type: ignore[arg-type]


def test_five_hundred_tokens_in_five_seconds_are_a_hundred_a_second(store: TelemetryStore, clock: Clock) -> None:
    for _ in range(50):
        clock.now += 0.1
        store.record(step(generation_tokens=10))
    assert store.throughput().generation_tokens_per_s == pytest.approx(100.0)
    assert store.throughput().generation_tokens_total == 500


DRAFT = SpeculationStep(1, 5, 4, [1] * 5, [1, 1, 1, 1, 0])


def test_rates_cover_the_time_since_the_engine_serves_not_its_start(store: TelemetryStore, clock: Clock) -> None:
    clock.now += 40.3  # the engine starts
    store.engine_serves()
    for _ in range(8):
        clock.now += 0.5
        store.record(step(generation_tokens=50, prompt_tokens=100, preemptions=1, finished=1, speculation=DRAFT))
    assert store.throughput().generation_tokens_per_s == pytest.approx(100.0)
    assert store.throughput().prompt_tokens_per_s == pytest.approx(200.0)
    assert store.throughput().requests_per_s == pytest.approx(2.0)
    assert store.queue(BUSY).preemptions_per_s == pytest.approx(2.0)
    assert store.speculation("ngram", 5).drafted_per_s == pytest.approx(10.0)
    assert store.speculation("ngram", 5).accepted_per_s == pytest.approx(8.0)


def test_rates_and_ratios_after_a_switch_are_the_new_engines_own(store: TelemetryStore, clock: Clock) -> None:
    store.engine_serves()
    for _ in range(100):
        clock.now += 0.2
        store.record(step(generation_tokens=200, speculation=DRAFT, prefix_queried_tokens=10))
    store.engine_gone()
    store.engine_serves()
    assert store.throughput().generation_tokens_per_s == 0.0
    assert store.speculation("ngram", 5).acceptance_rate is None
    for _ in range(6):
        clock.now += 0.5
        store.record(step(generation_tokens=5, speculation=SpeculationStep(1, 5, 1, [1] * 5, [1, 0, 0, 0, 0])))
    assert store.throughput().generation_tokens_per_s == pytest.approx(10.0)
    assert store.speculation("ngram", 5).acceptance_rate == pytest.approx(0.2)
    assert store.prefix_cache(True).queried_tokens == 0
    assert store.throughput().generation_tokens_total == 100 * 200 + 6 * 5
    assert store.prefix_cache(True).queried_tokens_total == 1000


def test_a_rate_of_a_long_served_engine_covers_its_window(store: TelemetryStore, clock: Clock) -> None:
    store.engine_serves()
    for _ in range(200):
        clock.now += 0.5
        store.record(step(generation_tokens=50, speculation=DRAFT))
    assert store.throughput().generation_tokens_per_s == pytest.approx(100.0, rel=0.06)
    assert store.speculation("ngram", 5).drafted_per_s == pytest.approx(10.0, rel=0.02)


def test_while_no_engine_serves_rates_fade_with_their_window(store: TelemetryStore, clock: Clock) -> None:
    store.engine_serves()
    for _ in range(100):
        clock.now += 0.5
        store.record(step(generation_tokens=50))
    store.engine_gone()
    clock.now += 5
    assert store.throughput().generation_tokens_per_s == pytest.approx(50.0, rel=0.15)
    clock.now += 6
    assert store.throughput().generation_tokens_per_s == 0.0


def test_a_rate_falls_to_zero_once_its_window_has_passed(store: TelemetryStore, clock: Clock) -> None:
    store.record(step(generation_tokens=1000, preemptions=2))
    clock.now += 11
    assert store.throughput().generation_tokens_per_s == 0
    assert store.queue(IDLE).preemptions_per_s == 0
    assert store.queue(IDLE).preemptions_total == 2


def test_a_long_pause_leaves_nothing_of_an_earlier_lap_of_the_ring(store: TelemetryStore, clock: Clock) -> None:
    for _ in range(SPAN_S):
        clock.now += 1
        store.record(step(generation_tokens=7))
    clock.now += SPAN_S * 3 + 5
    store.record(step(generation_tokens=1))
    assert store.throughput().generation_tokens_per_s == pytest.approx(1 / 9, rel=0.2)
    assert store.throughput().generation_tokens_total == 7 * SPAN_S + 1


def test_acceptance_counts_each_position_by_the_drafts_that_reached_it(store: TelemetryStore) -> None:
    store.record(step(speculation=SpeculationStep(2, 8, 5, [2, 2, 2, 1, 1], [2, 2, 1, 0, 0])))
    store.record(step(speculation=SpeculationStep(1, 2, 1, [1, 1, 0, 0, 0], [1, 0, 0, 0, 0])))
    read = store.speculation("ngram", 5)
    assert read.acceptance_rate == pytest.approx(6 / 10)
    assert read.mean_acceptance_length == pytest.approx(1 + 6 / 3)
    assert read.per_position == [pytest.approx(1.0), pytest.approx(2 / 3), pytest.approx(0.5), 0.0, 0.0]
    assert (read.drafts_total, read.drafted_total, read.accepted_total) == (3, 10, 6)


def test_without_a_draft_in_the_window_acceptance_is_unknown_not_zero(store: TelemetryStore, clock: Clock) -> None:
    store.record(step(speculation=SpeculationStep(1, 5, 5, [1] * 5, [1] * 5)))
    clock.now += 61
    read = store.speculation("ngram", 5)
    assert read.acceptance_rate is None
    assert read.mean_acceptance_length is None
    assert read.per_position == [None] * 5
    assert read.accepted_total == 5


def test_each_window_of_acceptance_has_its_own_counts(store: TelemetryStore, clock: Clock) -> None:
    store.engine_serves()
    clock.now += 10
    store.record(step(speculation=SpeculationStep(10, 50, 50, [10] * 5, [10] * 5)))
    clock.now += 200
    store.record(step(speculation=SpeculationStep(10, 20, 10, [10, 10, 0, 0, 0], [6, 4, 0, 0, 0])))
    clock.now += 40
    store.record(step(speculation=SpeculationStep(10, 10, 4, [10, 0, 0, 0, 0], [4, 0, 0, 0, 0])))
    windows = store.speculation("ngram", 5).windows
    assert list(windows) == ["10s", "1m", "5m"]
    assert [window.drafts for window in windows.values()] == [10, 20, 30]
    assert [window.acceptance_rate for window in windows.values()] == [0.4, pytest.approx(14 / 30), pytest.approx(0.8)]
    assert windows["10s"].mean_acceptance_length == pytest.approx(1.4)
    assert windows["10s"].per_position == [0.4, None, None, None, None]
    assert windows["1m"].per_position == [0.5, 0.4, None, None, None]
    assert windows["5m"].per_position == [pytest.approx(20 / 30), pytest.approx(0.7), 1.0, 1.0, 1.0]
    assert windows["1m"].drafted_per_s == pytest.approx(30 / 59, rel=0.01)
    assert windows["5m"].accepted_per_s == pytest.approx(64 / 250, rel=0.01)


def test_without_speculation_nothing_is_claimed(store: TelemetryStore) -> None:
    read = store.speculation(None, None)
    assert (read.method, read.k, read.drafted_per_s, read.per_position) == (None, None, None, [])
    assert read.windows == {}


def test_a_stopped_engine_takes_its_gauges_along_and_leaves_its_counters(store: TelemetryStore) -> None:
    store.record(step(running=3, waiting=1, waiting_deferred=0, kv_usage=0.9, generation_tokens=5))
    store.engine_gone()
    assert store.gauges.kv_usage_by_engine(None) == []
    assert store.gauges.kv_usage_by_engine(IDLE) == [0.0]
    assert store.throughput().generation_tokens_total == 5


def test_prefix_hits_are_a_ratio_of_tokens_in_the_window(store: TelemetryStore, clock: Clock) -> None:
    store.record(step(prefix_queried_tokens=100, prefix_hit_tokens=64))
    assert store.prefix_cache(True).hit_rate == 0.64
    clock.now += 61
    assert store.prefix_cache(True).hit_rate is None
    assert store.prefix_cache(True).queried_tokens_total == 100


def test_history_holds_one_value_a_second_and_no_more_than_its_span(store: TelemetryStore, clock: Clock) -> None:
    for second in range(SPAN_S + 20):
        clock.now += 1
        store.record(step(running=second, waiting=0, waiting_deferred=0, kv_usage=0.5))
        store.sample_history(BUSY)
    read = store.history(["queue.running", "kv.usage"], 300)
    assert len(read.series["queue.running"]) == SPAN_S
    assert read.series["queue.running"][-1] == SPAN_S + 19
    assert store.history(list(SERIES), 10).series.keys() == set(SERIES)
    with pytest.raises(ValueError, match=r"kv\.use"):
        store.history(["kv.use"], 10)


def test_memory_does_not_grow_with_load(store: TelemetryStore, clock: Clock) -> None:
    import tracemalloc

    def minute() -> None:
        for _ in range(60):
            clock.now += 1
            for _ in range(5):
                store.record(step(generation_tokens=256, itl_s=[0.02] * 256, running=256, kv_usage=0.9))
            store.sample_history(BUSY)
            store.latency()

    for _ in range(6):
        minute()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(10):
        minute()
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert grown < 200_000
