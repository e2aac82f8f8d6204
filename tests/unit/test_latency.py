"""Percentiles of binned samples against exact ones, and windows that forget."""

import math
import random

import pytest

from engine_host.telemetry.latency import LatencyWindows

WINDOWS = {"10s": 10.0, "1m": 60.0}


def exact(samples: list[float], q: float) -> float:
    return sorted(samples)[max(1, math.ceil(len(samples) * q)) - 1]


@pytest.mark.parametrize("spread", [0.1, 1.0, 3.0])
def test_percentiles_are_within_one_percent_of_the_exact_ones(spread: float) -> None:
    rng = random.Random(7)
    samples = [math.exp(rng.gauss(-4, spread)) for _ in range(5000)]
    windows = LatencyWindows(WINDOWS)
    windows.advance(100)
    windows.record(samples)
    read = windows.read()["10s"]
    assert read.n == 5000
    for got, q in ((read.p50_s, 0.50), (read.p95_s, 0.95), (read.p99_s, 0.99)):
        assert got == pytest.approx(exact(samples, q), rel=0.0101)


def test_a_window_without_samples_says_so_and_never_falls_back_to_older_ones() -> None:
    windows = LatencyWindows(WINDOWS)
    windows.advance(100)
    windows.record([0.5] * 3)
    windows.advance(115)
    read = windows.read()
    assert (read["10s"].n, read["10s"].p50_s) == (0, None)
    assert read["1m"].n == 3


def test_every_sample_leaves_every_window_exactly_once() -> None:
    windows = LatencyWindows(WINDOWS)
    second = 1000
    windows.advance(second)
    expected: list[tuple[int, int]] = []
    rng = random.Random(3)
    for _ in range(400):
        second += rng.choice([0, 1, 1, 2, 7, 70])
        windows.advance(second)
        count = rng.randint(0, 3)
        windows.record([0.01] * count)
        expected.append((second, count))
        for name, span in WINDOWS.items():
            assert windows.read()[name].n == sum(c for at, c in expected if second - span < at <= second)


def test_samples_beyond_the_scale_are_counted_in_the_outer_bins() -> None:
    windows = LatencyWindows(WINDOWS)
    windows.record([0.0, -1.0, 1e9])
    read = windows.read()["10s"]
    assert read.n == 3
    assert read.p50_s is not None and read.p50_s < 1e-4
    assert read.p99_s is not None and read.p99_s > 9e3
