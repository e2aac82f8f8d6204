"""The speculation screen as text: windows, positions, and what is recommended on which numbers."""

from __future__ import annotations

import unicodedata

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from console.frame import Moment
from console.lines import Tone, cells, plain_text
from console.speculation_page import offer, picked, place, speculation_page
from engine_host.protocol.methods import Role
from engine_host.protocol.snapshot import Snapshot
from engine_host.protocol.speculation import Recommendation
from tests.console import sample, sample_live, sample_switch
from tests.console.anything import anything
from tests.console.test_overview import state_of


def live(**changes):
    return state_of(sample_live.live(speculation=sample_live.speculation(**changes)))


LIVE = live()


def page(state=LIVE, width=80, height=23, now=0.5):
    rows = speculation_page(state, Moment(now, sample.AT), width, height)
    return "\n".join(plain_text(row).rstrip() for row in rows)


SCENES = {
    "live": LIVE,
    "trial": live(recommendation=sample_live.trial()),
    "one window": state_of(sample.serving()),
    "off": state_of(sample.idle_cpu()),
    "dead": state_of(sample.dead()),
    "switching": state_of(sample_switch.switching()),
}


@pytest.mark.parametrize("scene", SCENES)
@given(width=st.integers(1, 240), height=st.integers(1, 80))
@settings(max_examples=50, deadline=None)
def test_a_page_has_exactly_the_size_of_its_terminal(scene, width, height):
    rows = speculation_page(SCENES[scene], Moment(0.5, sample.AT), width, height)
    assert [cells(row) for row in rows] == [width] * height


@given(anything(Snapshot), st.integers(20, 200), st.integers(2, 60))
@settings(max_examples=150, suppress_health_check=list(HealthCheck), deadline=None)
def test_nothing_a_host_can_send_breaks_a_page_or_drives_the_terminal(snapshot, width, height):
    state = state_of(snapshot)
    rows = speculation_page(state, Moment(0.5, sample.AT), width, height)
    assert [cells(row) for row in rows] == [width] * height
    assert not any(unicodedata.category(c) == "Cc" for row in rows for c in plain_text(row))
    assert place(state).startswith("speculation")


def test_the_three_windows_stand_side_by_side():
    text = page()
    for what in (
        "ngram   K 5 of max 8   speed-up 2.31x  against K 0",
        "10 s         69.1 %          3.84    2.73k /s    1.89k /s     5,600",
        "1 min        71.2 %          3.93    2.73k /s    1.94k /s    33,600",
        "5 min        74.0 %          4.05    2.73k /s    2.02k /s   168,000",
    ):
        assert what in text


def test_each_position_has_its_rate_in_each_window():
    text = page()
    assert "Position         1      2      3      4      5" in text
    assert "1 min       88 %   79 %   70 %   61 %   55 %" in text


def test_positions_that_were_not_drafted_are_unknown_and_those_that_do_not_fit_are_counted():
    short = msgspec.structs.replace(sample_live.window(1.0, 10), per_position=[0.9, None])
    long = msgspec.structs.replace(sample_live.window(1.0, 60), per_position=[0.5] * 15)
    text = page(live(windows={"10s": short, "1m": long}))
    assert "10 s        90 %      –      –" in text
    assert "+6" in text


def test_a_window_without_a_draft_says_none_and_shows_dashes():
    empty = type(sample_live.window(1.0, 1))()
    text = page(live(windows={"10s": empty}))
    assert "10 s              –             –        – /s        – /s      none" in text
    assert "no draft in any window" in text


def test_a_host_that_gives_one_window_only_is_shown_with_it():
    assert "1 min        71.2 %          3.93" in page(SCENES["one window"])
    assert "the host gives no recommendation" in page(SCENES["one window"])


def test_the_recommendation_stands_with_the_table_it_rests_on():
    text = page()
    assert "Recommend  K 3 gives 1.12 times the tokens/s of K 5 at 37 requests" in text
    assert "a proposes K 3; asks before it is set" in text
    rows = text.splitlines()
    best = next(row for row in rows if "recommended" in row)
    assert best.split()[:5] == ["3", "3.37", "22.2", "ms", "152"]
    assert "1.12x" in best and "measured" in best
    assert any("now" in row and row.split()[0] == "5" for row in rows)
    assert any("inferred" in row for row in rows)


def test_where_not_all_choices_fit_those_in_force_and_recommended_stay():
    choices = sample_live.choices()
    assert [choice.k for choice in picked(choices, 4, {3, 7, None})] == [2, 3, 4, 7]
    assert picked(choices, 99, set()) == choices
    assert picked(choices, 0, {3}) == []


def test_what_is_to_be_measured_first_is_said_and_offered_for_a_while():
    text = page(SCENES["trial"])
    assert "not known yet: at 37 requests only K 5 has been measured" in text
    assert "a proposes K 2 for 30 s; asks before it is set" in text
    assert offer(SCENES["trial"])[:3] == ("try", 2, 30.0)


@pytest.mark.parametrize(
    "advice",
    [
        Recommendation(text="K 5 is right", k=5),
        Recommendation(text="not known"),
        Recommendation(text="beyond the range", k=99),
        Recommendation(text="beyond the range", try_k=-1),
    ],
)
def test_there_is_nothing_to_apply_where_k_stands_right_or_is_not_known(advice):
    state = live(recommendation=advice)
    assert offer(state) is None
    assert place(state) == "speculation"
    assert "a proposes" not in page(state)


def test_an_engine_whose_k_cannot_be_moved_says_so():
    state = state_of(sample_live.live(dials={}))
    assert offer(state) is None
    assert "K cannot be moved while this engine runs" in page(state)


def test_a_viewer_is_not_told_of_the_key():
    assert "a proposes" not in page(state_of(sample_live.live(), role=Role.VIEWER))


def test_a_profile_without_drafts_says_how_it_gets_them():
    text = " ".join(page(SCENES["off"]).split())
    assert "off: this profile drafts no tokens" in text
    assert "[engine.speculative_config]" in text


def test_old_values_fade():
    rows = speculation_page(LIVE, Moment(30.0, sample.AT), 80, 23)
    row = next(row for row in rows if "Position" in plain_text(row))
    assert {tone for text, tone in row if text.strip()} == {Tone.FAINT}
