"""When answers under way will have ended, by their age and by how long others took."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_host.gateway.answers import Answers
from engine_host.gateway.asked import Asked

NOW = 1_000.0


def asked(choices: int = 1) -> Asked:
    return Asked({}, "/v1/completions", b"", choices, 1, "normal")


class Kept(Answers):
    """Keeps who runs, as the gate does: they are told apart by identity."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[Asked] = []

    def began(self, asked: Asked, now: float) -> None:
        self.kept.append(asked)
        super().began(asked, now)


def answers(took_s: list[float], ages_s: list[float]) -> Answers:
    one = Kept()
    for took in took_s:
        ended = asked()
        one.began(ended, NOW - took)
        one.ended(ended, NOW)
    for age_s in ages_s:
        one.began(asked(), NOW - age_s)
    return one


def test_nothing_is_known_before_anything_has_ended() -> None:
    assert answers([], [5.0]).free_in_s(1, 1, NOW) is None


@pytest.mark.parametrize(
    ("took_s", "ages_s", "places", "free_in_s"),
    [
        ([10.0], [4.0], 1, 6.0),
        ([10.0, 30.0], [4.0], 1, 16.0),
        ([10.0, 30.0], [12.0], 1, 18.0),
        ([10.0], [4.0, 8.0], 1, 2.0),
        ([10.0], [4.0, 8.0], 2, 6.0),
        ([10.0], [4.0, 8.0], 5, 6.0 + 3 * 10.0 / 2),
        ([10.0], [15.0], 1, 5.0),
        ([10.0], [900.0], 1, 60.0),
        ([10.0], [4.0], 0, 0.0),
    ],
)
def test_those_that_took_longer_tell_what_is_left(
    took_s: list[float], ages_s: list[float], places: int, free_in_s: float
) -> None:
    assert answers(took_s, ages_s).free_in_s(places, 2, NOW) == pytest.approx(free_in_s)


def test_an_answer_of_several_choices_frees_as_many_places() -> None:
    one = answers([10.0], [])
    one.began(several := asked(3), NOW - 6.0)
    one.began(last := asked(), NOW)
    assert [one.free_in_s(places, 4, NOW) for places in (1, 3, 4)] == [4.0, 4.0, 10.0]
    one.ended(several, NOW)
    one.ended(last, NOW)
    assert one._running == {}


def test_a_forecast_counts_down_while_nothing_changes() -> None:
    one = answers([10.0], [4.0])
    assert [one.free_in_s(1, 1, NOW + later_s) for later_s in (0.0, 0.2, 3.0)] == pytest.approx([6.0, 5.8, 3.0])


SECONDS = st.lists(st.floats(0.0, 1e4), max_size=80)


@given(SECONDS, SECONDS, st.integers(0, 100), st.integers(1, 8))
def test_more_places_are_never_free_sooner(took_s: list[float], ages_s: list[float], places: int, cap: int) -> None:
    one = answers(took_s, ages_s)
    fewer, more = one.free_in_s(places, cap, NOW), one.free_in_s(places + 1, cap, NOW)
    if not took_s:
        assert fewer is None and more is None
    else:
        assert fewer is not None and more is not None and 0.0 <= fewer <= more
