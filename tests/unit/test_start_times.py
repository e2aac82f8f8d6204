"""The forecast of a start: remembered over runs, and never in the way of one."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine_host.engine.start_times import KEPT, StartTimes


def test_what_a_profile_took_is_expected_the_next_time(tmp_path: Path) -> None:
    path = tmp_path / "start-times.json"
    assert StartTimes(path).expected_s("a") is None
    StartTimes(path).remember("a", 20.04)
    StartTimes(path).remember("b", 7)
    later = StartTimes(path)
    assert (later.expected_s("a"), later.expected_s("b"), later.expected_s("c")) == (20.0, 7.0, None)
    assert [found.name for found in tmp_path.iterdir()] == ["start-times.json"]


def test_one_slow_start_does_not_skew_the_forecast(tmp_path: Path) -> None:
    times = StartTimes(tmp_path / "start-times.json")
    times.remember("a", 300.0)  # cold disk
    times.remember("a", 20.0)
    assert times.expected_s("a") == 20.0
    for took_s in (21.0, 22.0, 400.0):
        times.remember("a", took_s)
    assert times.expected_s("a") == 22.0


def test_a_start_that_has_become_slower_is_believed_after_a_few(tmp_path: Path) -> None:
    times = StartTimes(tmp_path / "start-times.json")
    for took_s in [20.0] * 50 + [60.0] * 3:
        times.remember("a", took_s)
    assert times.expected_s("a") == 60.0


def test_a_file_of_an_earlier_release_is_read(tmp_path: Path) -> None:
    (tmp_path / "start-times.json").write_text('{"a": 20.5}')
    times = StartTimes(tmp_path / "start-times.json")
    assert times.expected_s("a") == 20.5
    times.remember("a", 30.0)
    assert times.expected_s("a") == 20.5


def test_the_profiles_started_last_are_kept(tmp_path: Path) -> None:
    times = StartTimes(tmp_path / "start-times.json")
    times.remember("often", 1.0)
    for number in range(KEPT - 1):
        times.remember(f"p{number}", 1.0)
    times.remember("often", 2.0)
    times.remember("new", 3.0)
    assert (times.expected_s("often"), times.expected_s("new"), times.expected_s("p0")) == (1.0, 3.0, None)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[1]",
        b"\xff",
        b'{"a": "long"}',
        b'{"a": true}',
        b'{"a": NaN}',
        b'{"a": -1}',
        b'{"a": []}',
        b'{"a": ["x"]}',
        b"[" * 100_000,
    ],
)
def test_a_file_that_makes_no_sense_costs_the_forecast_only(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "start-times.json"
    path.write_bytes(content)
    times = StartTimes(path)
    assert times.expected_s("a") is None
    times.remember("a", 5.0)
    assert times.expected_s("a") == 5.0


def test_a_disk_that_cannot_keep_it_does_not_stop_a_start(tmp_path: Path) -> None:
    times = StartTimes(tmp_path / "none" / "start-times.json")
    times.remember("a", 5.0)
    assert times.expected_s("a") is None
