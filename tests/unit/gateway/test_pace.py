"""The pace of admissions is known where requests press, and only there."""

from __future__ import annotations

import pytest

from engine_host.gateway.pace import Pace


def test_requests_that_come_when_there_is_room_tell_no_pace() -> None:
    pace = Pace()
    for second in range(10):
        pace.admitted(float(second), has_waited=False)
    assert pace.per_s(10.0) is None
    pace.found_no_room(10.0)
    assert pace.per_s(20.0) is None, "nobody has been admitted since"


def test_the_pace_counts_from_when_there_was_no_room_and_falls_while_nobody_is_admitted() -> None:
    pace = Pace()
    pace.found_no_room(100.0)
    for second in (104.0, 108.0):
        pace.admitted(second, has_waited=True)
    assert pace.per_s(108.0) == pytest.approx(0.25)
    assert pace.per_s(116.0) == pytest.approx(0.125)


def test_where_none_waits_the_refused_show_that_requests_press() -> None:
    pace = Pace()
    for second in range(0, 20, 2):
        pace.found_no_room(float(second))
        pace.admitted(second + 1.0, has_waited=False)
    assert pace.per_s(20.0) == pytest.approx(0.5)


def test_once_there_was_room_again_the_pace_is_forgotten() -> None:
    pace = Pace()
    pace.found_no_room(0.0)
    pace.admitted(1.0, has_waited=True)
    pace.admitted(1_000.0, has_waited=False)
    assert pace.per_s(1_000.0) is None
    pace.found_no_room(2_000.0)
    pace.admitted(2_010.0, has_waited=True)
    assert pace.per_s(2_010.0) == pytest.approx(0.1)


def test_only_the_last_admissions_count() -> None:
    pace = Pace()
    pace.found_no_room(0.0)
    for number in range(64):
        pace.admitted(100.0 * number, has_waited=True)
    for number in range(64):
        pace.admitted(6_300.0 + number, has_waited=True)
    assert pace.per_s(6_363.0) == pytest.approx(1.0, rel=0.05)
