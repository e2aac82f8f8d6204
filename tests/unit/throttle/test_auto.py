"""The automatic controller, rule by rule: when it cuts, when it raises, when it lets go."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_host.profiles.throttle_table import Auto
from engine_host.throttle.auto import (
    FROZEN_AFTER_S,
    LONGEST_PROBE_AFTER_S,
    PROBE_AFTER_S,
    TURNS,
    TURNS_WITHIN_S,
    AutoController,
)
from engine_host.throttle.gauges import Gauges

from .flight import Flight
from .plant import direction_changes

# --- down --------------------------------------------------------------------------------------------------------


def test_says_in_words_why_it_cut() -> None:
    flight = Flight()
    assert flight.fly(5.0, kv=0.94, inflight=64, running=64) == ["KV 94 % for 3 s: cap none → 32 (64 in flight)"]


def test_the_second_cut_names_the_cap_before() -> None:
    flight = Flight()
    flight.choke(32)
    assert flight.fly(4.0, kv=0.94) == ["KV 94 % for 3 s: cap 32 → 16"]


def test_does_nothing_before_the_dwell_time_is_over() -> None:
    flight = Flight()
    assert flight.fly(2.8, kv=0.94) == []


def test_a_figure_that_dips_below_its_threshold_begins_anew() -> None:
    flight = Flight()
    assert flight.fly(2.5, kv=0.94) + flight.fly(0.2, kv=0.89) + flight.fly(2.5, kv=0.94) == []


@pytest.mark.parametrize(
    ("figures", "why"),
    [
        ({"waiting": 12}, "12 waiting for 3 s"),
        ({"preemptions_per_s": 1.3}, "1.3 preemptions/s for 3 s"),
        ({"ttft_p95_s": 4.21}, "TTFT p95 4.21 s for 3 s"),
        ({"kv": 0.97, "waiting": 12}, "KV 97 % and 12 waiting for 3 s"),
    ],
)
def test_one_figure_is_enough(figures: dict[str, Any], why: str) -> None:
    """Field case 23: a queue that grows with the KV cache a third full. "and" would never have seen it."""
    flight = Flight(ttft_p95_enter_s=2.0, ttft_p95_leave_s=1.0)
    (text,) = flight.fly(4.0, **({"kv": 0.32, "inflight": 30} | figures))
    assert text.startswith(f"{why}: cap none → ")


def test_a_figure_without_a_threshold_is_not_watched() -> None:
    flight = Flight(kv_enter=None, waiting_enter=None)
    assert flight.fly(20.0, kv=1.0, waiting=50, inflight=60) == []


def test_the_first_cap_is_a_share_of_what_the_engine_works_on_not_of_its_queue() -> None:
    flight = Flight()
    flight.fly(4.0, kv=0.98, inflight=60, running=20, waiting=40)
    assert flight.cap == 10


def test_where_only_the_queue_is_long_as_much_of_it_may_stay_as_the_threshold_says() -> None:
    flight = Flight()
    flight.fly(4.0, kv=0.2, inflight=50, running=3, waiting=47)
    assert flight.cap == 5


def test_a_queue_behind_a_full_batch_does_not_starve_the_batch() -> None:
    flight = Flight()
    flight.fly(4.0, kv=0.6, inflight=400, running=256, waiting=144)
    assert flight.cap == 258


def test_a_queue_behind_a_full_cache_is_the_caches_trouble() -> None:
    """The cache dips below its threshold each time a request ends, so that only the queue is above its own for long."""
    flight = Flight()
    flight.fly(4.0, kv=0.87, inflight=40, running=16, waiting=24)
    assert flight.cap == 8


def test_waits_until_a_cut_has_taken_hold_before_the_next() -> None:
    flight = Flight()
    flight.fly(4.0, kv=0.95, inflight=64, running=64)
    assert flight.fly(60.0, kv=0.95, inflight=40, running=40, held=9) == []
    assert flight.fly(2.5, inflight=32, running=32) == []
    assert flight.fly(1.0) == ["KV 95 % for 3 s: cap 32 → 16"]


def test_a_figure_that_looks_back_is_heard_only_about_the_time_since_the_cut() -> None:
    flight = Flight(kv_enter=None, ttft_p95_enter_s=2.0, ttft_p95_leave_s=1.0)
    flight.fly(4.0, ttft_p95_s=5.0, inflight=64, running=64)
    assert flight.fly(12.5, inflight=32, running=32, held=5) == []
    assert len(flight.fly(1.0)) == 1


def test_never_goes_below_its_lowest_cap() -> None:
    flight = Flight(min_inflight=4)
    flight.fly(4.0, kv=0.99, inflight=9, running=9)
    flight.fly(120.0, full=True)
    assert [cap for _, cap in flight.caps] == [4]


def test_never_closes_the_gate() -> None:
    flight = Flight(decrease=0.1)
    flight.fly(4.0, kv=0.99, inflight=2, running=2)
    assert flight.cap == 1
    assert flight.fly(60.0, inflight=1, running=1) == []


def test_one_request_that_fills_the_cache_alone_is_left_alone() -> None:
    flight = Flight()
    assert flight.fly(30.0, kv=0.99, inflight=1, running=1, unfinished=1) == []


def test_never_exceeds_the_profiles_own_cap() -> None:
    flight = Flight(decrease=0.9)
    flight.fly(4.0, kv=0.95, inflight=40, running=40, bound=16)
    assert flight.cap == 14


def test_does_not_put_a_cap_beside_a_lower_one_of_the_profile() -> None:
    flight = Flight(min_inflight=16)
    assert flight.fly(10.0, kv=0.95, inflight=16, running=16, bound=16) == []


# --- up ----------------------------------------------------------------------------------------------------------


def test_holds_between_the_thresholds() -> None:
    flight = Flight()
    flight.choke()
    assert flight.fly(60.0, kv=0.85, full=True) == []


def test_climbs_fast_to_just_below_where_it_choked_and_stays_there() -> None:
    flight = Flight()
    flight.choke(16)
    flight.fly(PROBE_AFTER_S - 2.0, kv=0.5, full=True)
    assert [cap for _, cap in flight.caps] == [16, 23, 27, 29, 30, 31]
    assert flight.texts[1] == "all figures below their thresholds for 5 s, 1 held: cap 16 → 23"


def test_tries_the_cap_that_choked_again_after_a_pause() -> None:
    flight = Flight()
    flight.choke(16)
    flight.fly(PROBE_AFTER_S + 6.0, kv=0.5, full=True, finish_per_s=100)
    assert flight.cap is not None and flight.cap >= 32


def test_tries_less_and_less_often_what_chokes_again_and_again() -> None:
    flight = Flight(decrease=0.9)
    attempts: list[float] = []
    flight.fly(4.0, kv=0.95, inflight=20, running=20)
    while flight.now < 2000.0:
        had = flight.cap or 0
        flight.fly(0.1, kv=0.95 if had >= 20 else 0.5, full=True, finish_per_s=100)
        if had < 20 <= (flight.cap or 0):
            attempts.append(flight.now)
    pauses = [later - earlier for earlier, later in pairwise(attempts)]
    assert len(attempts) >= 4
    assert pauses == sorted(pauses)
    assert pauses[-1] >= LONGEST_PROBE_AFTER_S


def test_beyond_what_is_known_rises_once_a_turnover() -> None:
    flight = Flight()
    flight.choke(16)
    flight.fly(PROBE_AFTER_S - 2.0, kv=0.5, full=True)
    assert flight.cap == 31
    flight.fly(20.0, full=True, finish_per_s=31 / 20.0 * 0.5)
    assert flight.cap == 31
    flight.fly(22.0, full=True, finish_per_s=31 / 20.0 * 0.5)
    assert flight.cap == 32


def test_raises_only_while_the_cap_keeps_requests_out() -> None:
    flight = Flight()
    flight.choke(16)
    assert all("→ none" in text for text in flight.fly(60.0, kv=0.3, inflight=9, running=9, held=0))


def test_what_another_limit_holds_is_no_reason_to_keep_the_cap() -> None:
    """A request rate, say: requests wait, and the engine is nearly empty."""
    flight = Flight()
    flight.choke(16)
    (text,) = flight.fly(60.0, kv=0.3, inflight=4, running=4, held=30)
    assert text == "4 of 16 in flight for 5 s: cap 16 → none"


# --- let go ------------------------------------------------------------------------------------------------------


def test_lets_go_within_ten_seconds_of_the_load_going_away() -> None:
    flight = Flight()
    flight.choke(16)
    assert flight.fly(10.0, kv=0.2, inflight=4, running=4, held=0) == ["4 of 16 in flight for 5 s: cap 16 → none"]


def test_holds_on_while_requests_are_held() -> None:
    flight = Flight()
    flight.choke(16)
    assert not any("→ none" in text for text in flight.fly(60.0, kv=0.3, full=True))


def test_holds_on_while_a_figure_is_above_its_leave_threshold() -> None:
    flight = Flight()
    flight.choke(16)
    assert flight.fly(60.0, kv=0.85, inflight=4, running=4, held=0) == []


def test_frozen_gauges_let_go_once_nothing_is_unfinished() -> None:
    """Field case 5: after a mass abort vLLM's gauges stood at 106 running and 90.4 % for ever."""
    flight = Flight()
    flight.fly(4.0, kv=0.904, inflight=212, running=106, waiting=106)
    assert flight.cap == 53
    gone: dict[str, Any] = {"inflight": 0, "unfinished": 0, "silent_s": 1.1}
    assert flight.fly(0.5, flowing=False, **gone) == ["no request is left in the engine: cap 53 → none"]
    assert flight.fly(300.0, flowing=False) == []


def test_figures_that_stand_still_let_go_whatever_is_unfinished() -> None:
    flight = Flight()
    flight.choke(16)
    (text,) = flight.fly(60.0, flowing=False, kv=0.95, held=20)
    assert text == f"the figures have stood still for {FROZEN_AFTER_S:.0f} s and no token came: cap 16 → none"
    assert flight.now - flight.caps[-1][0] == pytest.approx(60.0 - FROZEN_AFTER_S, abs=0.4)


def test_figures_that_stand_still_cut_nothing() -> None:
    flight = Flight()
    flight.fly(0.5, kv=0.95)
    assert flight.fly(60.0, flowing=False) == []


def test_a_long_step_does_not_count_against_the_engine() -> None:
    """A prefill of several seconds on CPU: no figure moves meanwhile, and nothing is let go."""
    flight = Flight()
    flight.choke(16)
    assert flight.fly(FROZEN_AFTER_S - 1.0, flowing=False) == []
    assert flight.cap == 16


@pytest.mark.parametrize("name", ["kv", "waiting", "preemptions_per_s"])
def test_unknown_is_not_zero(name: str) -> None:
    """Nor too much: what is unknown neither cuts nor keeps the others from cutting."""
    flight = Flight()
    others = {"kv": 0.95, "waiting": 20, "preemptions_per_s": 2.0} | {name: None}
    assert len(flight.fly(4.0, inflight=60, **others)) == 1


def test_without_any_figure_nothing_is_done() -> None:
    flight = Flight()
    unknown = {"kv": None, "waiting": None, "running": None, "preemptions_per_s": None, "unfinished": None}
    assert flight.fly(60.0, inflight=500, held=100, **unknown) == []


def test_a_cap_is_let_go_when_the_engine_tells_nothing_any_more() -> None:
    flight = Flight()
    flight.choke(16)
    unknown = {"kv": None, "waiting": None, "running": None, "preemptions_per_s": None, "unfinished": None}
    (text,) = flight.fly(5.0, silent_s=1.5, **unknown)
    assert text == "the engine tells no figures: cap 16 → none"


# --- what else happens to a host -----------------------------------------------------------------------------------


def test_begins_afresh_with_another_engine() -> None:
    flight = Flight()
    flight.choke(16)
    assert flight.fly(0.1, engine=7) == ["another engine serves: cap 16 → none"]
    assert flight.fly(2.5, kv=0.95) == []
    assert len(flight.fly(1.0)) == 1


def test_a_paused_gate_changes_nothing() -> None:
    flight = Flight()
    flight.choke(16)
    paused: dict[str, Any] = {"is_paused": True, "kv": 0.1, "inflight": 0, "running": 0, "held": 40}
    assert flight.fly(60.0, **paused) == []
    assert flight.fly(60.0, flowing=False, unfinished=0, silent_s=50.0) == []
    assert flight.cap == 16
    assert flight.fly(2.0, is_paused=False, kv=0.85, inflight=16, running=16, unfinished=16, silent_s=0.0) == []


def test_the_profiles_own_cap_replaces_one_that_is_no_longer_lower() -> None:
    flight = Flight()
    flight.choke(16)
    (text,) = flight.fly(6.0, kv=0.5, bound=16, full=True)
    assert text == "the profile's own cap of 16 is enough: cap 16 → none"


def test_observing_says_once_what_it_would_do() -> None:
    flight = Flight(mode="observe")
    said = flight.fly(120.0, kv=0.95, inflight=64, running=20, waiting=44)
    assert said == ["KV 95 % and 44 waiting for 3 s: would move the cap none → 10 (64 in flight)"]
    assert flight.fly(6.0, kv=0.5, inflight=9, running=9, waiting=0) == [
        "all figures below their thresholds for 5 s: would move the cap 10 → none"
    ]


def test_other_settings_leave_the_cap_in_force() -> None:
    flight = Flight()
    flight.choke(16)
    flight.controller.retune(Auto(mode="on", kv_enter=0.7, kv_leave=0.6, dwell_s=1.0))
    assert flight.cap == 16
    assert flight.fly(1.5, kv=0.75) != []


def test_another_mode_begins_afresh() -> None:
    flight = Flight()
    flight.choke(16)
    flight.controller.retune(Auto(mode="observe"))
    assert flight.cap is None


def test_shows_how_long_each_figure_has_been_over() -> None:
    flight = Flight()
    flight.fly(2.05, kv=0.95, inflight=64)
    kv, waiting, _, ttft = flight.controller.gauges(flight.now)
    assert (kv.name, kv.value, kv.enter, kv.leave) == ("kv", 0.95, 0.9, 0.8)
    assert kv.over_for_s == pytest.approx(2.0, abs=0.15)
    assert waiting.over_for_s is None
    assert (ttft.value, ttft.enter) == (None, None)


# --- whatever comes ------------------------------------------------------------------------------------------------

moment = st.fixed_dictionaries(
    {
        "kv": st.none() | st.floats(0.0, 1.0),
        "running": st.none() | st.integers(0, 300),
        "waiting": st.none() | st.integers(0, 300),
        "preemptions_per_s": st.none() | st.floats(0.0, 20.0),
        "inflight": st.integers(0, 600),
        "held": st.integers(0, 300),
        "unfinished": st.none() | st.integers(1, 600),
    }
)


@settings(max_examples=150, deadline=None)
@given(
    moments=st.lists(st.tuples(moment, st.integers(1, 80)), max_size=40),
    decrease=st.floats(0.05, 0.95),
    min_inflight=st.integers(1, 8),
    dwell_s=st.floats(0.1, 5.0),
)
def test_whatever_comes_it_neither_closes_nor_saws(
    moments: list[tuple[dict[str, Any], int]], decrease: float, min_inflight: int, dwell_s: float
) -> None:
    controller = AutoController(
        Auto(mode="on", decrease=decrease, min_inflight=min_inflight, dwell_s=dwell_s, leave_dwell_s=dwell_s)
    )
    at, tokens, caps = 0.0, 0, []
    for values, steps in moments:
        for _ in range(steps):
            at += 0.2
            tokens += 1
            before = controller.cap
            action = controller.step(Gauges(at=at, tokens_total=tokens, finished_total=tokens * 9, **values))
            if action is not None:
                assert action.cap != before
                assert action.cap is None or action.cap >= min_inflight
                caps.append((at, action.cap))
    assert direction_changes(caps, TURNS_WITHIN_S) <= TURNS
