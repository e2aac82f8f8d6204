"""Rates with a burst: never more than burst + rate x time, never a wait that was too short, what is owed is paid."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_host.gateway.buckets import Bucket, burst_of

RATES = st.floats(0.01, 10_000)
BURSTS = st.floats(1, 10_000)
COSTS = st.lists(st.tuples(st.floats(0.0, 30.0), st.floats(0.1, 20_000)), min_size=1, max_size=60)


@given(RATES, BURSTS, COSTS)
def test_over_any_span_no_more_goes_than_burst_and_rate_allow(
    rate: float, burst: float, asked: list[tuple[float, float]]
) -> None:
    bucket, now = Bucket(rate, burst, 0.0), 0.0
    went: list[tuple[float, float]] = []
    for pause, cost in asked:
        now += pause
        if bucket.wait_s(cost, now) == 0.0:
            bucket.take(cost, now)
            went.append((now, cost))
    for index, (began, _) in enumerate(went):
        total = 0.0
        for at, cost in went[index:]:
            # What came before the last one is paid when it goes: that one's own part beyond the burst is owed.
            assert total + min(cost, burst) <= burst + rate * (at - began) + 1e-6 * (burst + total + cost)
            total += cost


@given(RATES, BURSTS, COSTS)
def test_whoever_waits_as_long_as_told_may_go_and_not_much_earlier(
    rate: float, burst: float, asked: list[tuple[float, float]]
) -> None:
    bucket, now = Bucket(rate, burst, 0.0), 0.0
    for pause, cost in asked:
        now += pause
        wait = bucket.wait_s(cost, now)
        if wait > 1e-6 * max(1.0, burst) / rate:
            assert bucket.wait_s(cost, now + wait / 2) > 0.0
        now += wait
        assert bucket.wait_s(cost, now + 1e-9 * max(1.0, now)) == 0.0
        bucket.take(cost, now)


def test_what_costs_more_than_the_burst_goes_on_a_full_bucket_and_is_owed() -> None:
    bucket = Bucket(rate=10.0, burst=20.0, now=0.0)
    assert bucket.wait_s(100.0, 0.0) == 0.0
    bucket.take(100.0, 0.0)
    assert bucket.wait_s(1.0, 0.0) == pytest.approx(8.1)
    assert bucket.wait_s(100.0, 0.0) == pytest.approx(10.0)


def test_another_rate_goes_on_with_what_is_in_the_bucket() -> None:
    bucket = Bucket(rate=1.0, burst=10.0, now=0.0)
    bucket.take(10.0, 0.0)
    bucket.tune(rate=5.0, burst=4.0, now=2.0)
    assert bucket.wait_s(4.0, 2.0) == pytest.approx(0.4)
    bucket.tune(rate=5.0, burst=100.0, now=2.0)
    assert bucket.wait_s(100.0, 2.0) == pytest.approx(98 / 5)


def test_who_waits_behind_others_waits_for_them_too() -> None:
    bucket = Bucket(rate=2.0, burst=2.0, now=0.0)
    assert bucket.wait_behind_s(1.0, ahead=9.0, now=0.0) == pytest.approx(4.0)


@pytest.mark.parametrize(("rate", "burst", "expected"), [(0.2, None, 1.0), (8.0, None, 8.0), (8.0, 3, 3.0)])
def test_the_burst_is_what_a_second_lets_through_unless_it_is_set(
    rate: float, burst: int | None, expected: float
) -> None:
    assert burst_of(rate, burst) == expected
