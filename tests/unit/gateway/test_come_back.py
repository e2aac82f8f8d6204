"""When those who are turned away are told to come back."""

from __future__ import annotations

import pytest

from engine_host.gateway import come_back
from engine_host.gateway.unavailable import Unavailable, unavailable_body, unavailable_headers


@pytest.mark.parametrize(
    ("elapsed_s", "left_s"),
    [(0.0, 39.0), (10.0, 29.0), (38.5, 1.0), (39.0, 1.0), (39.8, 1.0), (45.0, 6.0), (70.0, 31.0), (600.0, 39.0)],
)
def test_what_is_late_is_told_to_take_as_long_again_within_what_it_takes_in_all(
    elapsed_s: float, left_s: float
) -> None:
    assert come_back.left_s(39.0, elapsed_s) == pytest.approx(left_s)


@pytest.mark.parametrize(("hold_deadline_s", "told_s"), [(0.0, 1.0), (20.0, 20.0), (86_400.0, 60.0)])
def test_where_nothing_is_known_it_is_the_hold_deadline_within_bounds(hold_deadline_s: float, told_s: float) -> None:
    assert come_back.where_unknown_s(hold_deadline_s) == told_s


def test_each_503_has_a_retry_after_which_is_that_of_its_body(monkeypatch: pytest.MonkeyPatch) -> None:
    why = Unavailable("starting", "It starts.", 39.0, began=1_000.0)
    for now, told in ((1_000.0, "39"), (1_012.25, "27"), (1_038.9, "1"), (1_044.0, "5")):
        monkeypatch.setattr("time.monotonic", lambda now=now: now)
        assert unavailable_headers(why)["retry-after"] == told
    assert b'"retry_after_s":5.0' in unavailable_body(why)
    assert unavailable_headers(Unavailable("draining", "It stops."))["retry-after"] == "30"
    assert unavailable_headers(Unavailable("dead", "It died.", 0.2))["retry-after"] == "1"
