"""The scheduler's gauges: believed while it speaks, corrected by the front end, and queues that hang or are stuck."""

from __future__ import annotations

from engine_host.engine.port import Backlog
from engine_host.telemetry.gauges import HUNG_AFTER_S, HUNG_WITHOUT_TOKENS_S, STUCK_AFTER_S
from engine_host.telemetry.store import TelemetryStore
from tests.unit.test_store import BUSY, IDLE, Clock, step
from tests.unit.test_store import clock as clock
from tests.unit.test_store import store as store


def test_engines_add_their_queues_and_the_fullest_names_the_kv_usage(store: TelemetryStore) -> None:
    store.record(step(engine_index=0, running=4, waiting=1, waiting_deferred=2, kv_usage=0.5))
    store.record(step(engine_index=1, running=3, waiting=0, waiting_deferred=0, kv_usage=0.7))
    queue = store.queue(BUSY)
    assert (queue.running, queue.waiting) == (7, 3)
    assert queue.waiting_by_reason == {"capacity": 1, "deferred": 2}
    assert store.gauges.kv_usage_by_engine(BUSY) == [0.5, 0.7]


def test_gauges_frozen_by_a_mass_abort_let_go_once_nothing_is_unfinished(store: TelemetryStore, clock: Clock) -> None:
    store.record(step(running=106, waiting=4, waiting_deferred=0, kv_usage=0.904))
    assert store.gauges.kv_usage_by_engine(BUSY) == [0.904]
    clock.now += 5
    assert store.queue(IDLE).running == 0
    assert store.gauges.kv_usage_by_engine(IDLE) == [0.0]


def test_without_an_engine_nothing_is_known(store: TelemetryStore) -> None:
    assert store.gauges.kv_usage_by_engine(None) == []
    assert store.queue(None).running is None
    assert store.gauges.last_step_age_s is None


def test_frozen_gauges_do_not_come_back_with_the_next_request(store: TelemetryStore, clock: Clock) -> None:
    store.record(step(running=106, waiting=4, waiting_deferred=0, kv_usage=0.904, generation_tokens=1))
    clock.now += 300
    store.queue(IDLE)
    queue = store.queue(Backlog(1, (0.1,)))
    assert (queue.running, queue.waiting, queue.stalled) == (0, 1, False)
    assert store.gauges.kv_usage_by_engine(Backlog(1, (0.1,))) == [0.0]


def test_an_engine_that_hangs_at_the_first_request_is_hung(store: TelemetryStore, clock: Clock) -> None:
    store.queue(IDLE)
    for _ in range(int(HUNG_AFTER_S) + 2):
        clock.now += 1
        queue = store.queue(Backlog(5, (9.0,) * 5))
    assert (queue.running, queue.waiting, queue.stalled_reason) == (0, 5, "hung")


def test_an_engine_that_hangs_after_being_idle_is_hung(store: TelemetryStore, clock: Clock) -> None:
    store.record(step(running=0, waiting=0, waiting_deferred=0, kv_usage=0.0, generation_tokens=1))
    clock.now += 600
    store.queue(IDLE)
    for _ in range(int(HUNG_AFTER_S) + 2):
        clock.now += 1
        queue = store.queue(Backlog(5, (9.0,) * 5))
    assert queue.stalled_reason == "hung"


def test_the_first_long_prefill_after_a_pause_is_not_hung(store: TelemetryStore, clock: Clock) -> None:
    store.record(step(running=1, waiting=0, waiting_deferred=0, kv_usage=0.1, generation_tokens=1))
    clock.now += 600
    store.queue(IDLE)
    clock.now += 1
    store.queue(Backlog(1, (0.1,)))
    store.record(step(running=1, waiting=0, waiting_deferred=0, kv_usage=0.1))
    assert not store.queue(Backlog(1, (0.1,))).stalled


def test_a_request_being_prefilled_does_not_count_as_waiting(store: TelemetryStore) -> None:
    store.record(step(running=2, waiting=1, waiting_deferred=0, kv_usage=0.1))
    assert store.queue(Backlog(3, (30.0, 29.0, 0.5))).oldest_wait_s == 0.5
    store.record(step(running=3, waiting=0, waiting_deferred=0, kv_usage=0.1))
    assert store.queue(Backlog(3, (30.0, 29.0, 0.5))).oldest_wait_s is None


def test_silence_with_running_requests_is_hung(store: TelemetryStore, clock: Clock) -> None:
    store.record(step(running=3, waiting=0, waiting_deferred=0, kv_usage=0.2, generation_tokens=3))
    store.queue(BUSY)
    clock.now += HUNG_AFTER_S - 1
    assert not store.queue(BUSY).stalled
    clock.now += 2
    assert (store.queue(BUSY).stalled, store.queue(BUSY).stalled_reason) == (True, "hung")


def test_steps_that_give_no_token_for_minutes_are_hung(store: TelemetryStore, clock: Clock) -> None:
    def go_on(seconds: float) -> str | None:
        for _ in range(int(seconds)):
            clock.now += 1
            store.record(step(running=3, waiting=0, waiting_deferred=0, kv_usage=0.2))
            found = store.queue(BUSY).stalled_reason
        return found

    assert go_on(HUNG_WITHOUT_TOKENS_S - 1) is None, "a prompt may be long"
    assert go_on(2) == "hung"
    store.record(step(running=3, waiting=0, waiting_deferred=0, kv_usage=0.2, generation_tokens=1))
    assert store.queue(BUSY).stalled_reason is None


def test_waiting_with_nothing_running_is_stuck_not_idle(store: TelemetryStore, clock: Clock) -> None:
    for _ in range(int(STUCK_AFTER_S) + 2):
        clock.now += 1
        store.record(step(running=0, waiting=1, waiting_deferred=0, kv_usage=0.0))
        last = store.queue(Backlog(1, (30.0,)))
    assert (last.stalled, last.stalled_reason) == (True, "stuck")


def test_a_fresh_engine_without_requests_is_idle_not_unknown(store: TelemetryStore) -> None:
    assert store.gauges.kv_usage_by_engine(IDLE) == [0.0]
    assert (store.queue(IDLE).running, store.queue(IDLE).waiting) == (0, 0)
    assert store.gauges.kv_usage_by_engine(BUSY) == []
