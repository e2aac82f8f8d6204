"""The forecast of a full KV cache: right on a line, untouched by single jumps, silent while nothing fills."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_host.telemetry.fill_rate import FillRate


def forecast(usages: Sequence[float | None], now: float | None = None, usage: float | None = None) -> float | None:
    """One usage a second; `usage` at `now`, the last one if nothing is said."""
    filling = FillRate()
    for second, one in enumerate(usages):
        filling.add(float(second), one)
    last = usages[-1] if usages else None
    return filling.full_in_s(len(usages) - 1.0 if now is None else now, last if usage is None else usage)


def test_a_steady_rise_is_full_when_the_line_says() -> None:
    assert forecast([0.50 + 0.02 * n for n in range(11)]) == pytest.approx(0.30 / 0.02)


def test_a_jump_of_one_second_moves_it_little() -> None:
    usages = [0.50 + 0.02 * n for n in range(11)]
    usages[5] += 0.2
    assert forecast(usages) == pytest.approx(15.0, rel=0.1)


def test_what_has_filled_since_the_last_second_counts() -> None:
    assert forecast([0.50 + 0.02 * n for n in range(11)], now=10.9, usage=0.718) == pytest.approx(14.1)


def test_room_that_was_given_back_since_the_last_second_counts() -> None:
    usages = [0.50 + 0.05 * n for n in range(11)]
    assert forecast(usages, usage=0.95) == pytest.approx(1.0)
    assert forecast(usages, now=10.9, usage=0.82) is None  # it has begun to fall


def test_of_a_usage_that_is_unknown_nothing_is_forecast() -> None:
    filling = FillRate()
    for second in range(11):
        filling.add(float(second), 0.50 + 0.02 * second)
    assert filling.full_in_s(10.0, None) is None


@pytest.mark.parametrize(
    "usages",
    [
        [],
        [0.1, 0.2, 0.3, 0.4],  # too few
        [0.5] * 11,
        [0.9 - 0.02 * n for n in range(11)],
        [0.5 + 0.0005 * n for n in range(11)],  # noise
        [0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.96, 0.97, 0.98, 0.9, 0.8],  # falls by now
        [0.1, 0.2, 0.3, None, 0.4, 0.5],  # unknown in between: what was before counts no more
    ],
)
def test_while_it_does_not_fill_there_is_no_forecast(usages: list[float | None]) -> None:
    assert forecast(usages) is None


def test_what_is_older_than_the_window_counts_no_more() -> None:
    assert forecast([0.9] * 30 + [0.02 * n for n in range(11)]) == pytest.approx(0.8 / 0.02, rel=0.25)


def test_a_full_cache_is_full_now() -> None:
    assert forecast([min(1.0, 0.8 + 0.05 * n) for n in range(6)]) == 0.0


@given(st.lists(st.floats(0.0, 1.0), max_size=30))
def test_a_forecast_is_a_time_within_an_hour_or_none(usages: list[float]) -> None:
    found = forecast(usages)
    assert found is None or 0.0 <= found <= 3600.0
