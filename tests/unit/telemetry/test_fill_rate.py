"""The forecast of a full KV cache: right on a line, untouched by single jumps, silent while nothing fills."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_host.telemetry.fill_rate import FillRate


def forecast(usages: Sequence[float | None], now: float | None = None) -> float | None:
    """One usage a second."""
    filling = FillRate()
    for second, usage in enumerate(usages):
        filling.add(float(second), usage)
    return filling.full_in_s(len(usages) - 1.0 if now is None else now)


def test_a_steady_rise_is_full_when_the_line_says() -> None:
    assert forecast([0.50 + 0.02 * n for n in range(11)]) == pytest.approx(0.30 / 0.02)


def test_a_jump_of_one_second_moves_it_little() -> None:
    usages = [0.50 + 0.02 * n for n in range(11)]
    usages[5] += 0.2
    assert forecast(usages) == pytest.approx(15.0, rel=0.1)


def test_time_that_has_passed_since_counts() -> None:
    assert forecast([0.50 + 0.02 * n for n in range(11)], now=12.0) == pytest.approx(13.0)


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
