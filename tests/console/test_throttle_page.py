"""The throttle screen as text: without a terminal, without a host. How a change is made is in `test_throttle_desk`."""

from __future__ import annotations

import unicodedata

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from console import change_desk
from console import throttle_desk as desks
from console.frame import Moment
from console.lines import Tone, cells, plain_text
from console.polled import Polled
from console.throttle_desk import Desk
from console.throttle_page import throttle_page
from console.tui.offers import offered
from engine_host.protocol.methods import Role
from engine_host.protocol.throttling import (
    AUTO,
    AutoGauge,
    AutoMode,
    AutoState,
    Former,
    GateCounts,
    Limit,
    LimitName,
    ThrottleSheet,
)
from tests.console import sample, sample_live, sample_throttle
from tests.console.anything import anything
from tests.console.sample_throttle import NOW, limits
from tests.console.test_overview import state_of

LIVE = state_of(sample_live.live())
SHEET = sample_throttle.sheet()
CALM = sample_throttle.sheet(limits=limits(), auto=AutoState(), counts=GateCounts())
PAUSING = desks.pausing(Desk(), SHEET)
CHANGES = {"more", "less", "set it", "value", "next", "pause", "no limit", "profile's", "next span", "why"}


def page(desk=None, sheet=SHEET, state=LIVE, width=80, height=23, now=0.5):
    asked = Polled(sheet, 0.3)
    rows = throttle_page(state, desk or Desk(), asked, Moment(now, sample.AT), width, height)
    return "\n".join(plain_text(row).rstrip() for row in rows)


def labels(desk, state=LIVE, sheet=SHEET):
    return {a.label for a in offered(desks.place(desk, sheet), state)}


def at(name, sheet=SHEET):
    desk = Desk(chosen=name)
    assert desks.chosen(desk, sheet) == name
    return desk


def refused(desk):
    """The same after the host has refused it."""
    return change_desk.refused(change_desk.sending(desk), "it was refused " * 30)


SCENES = {
    "still": (Desk(), LIVE, Polled(SHEET, 0.3)),
    "last": (at(AUTO), LIVE, Polled(SHEET, 0.3)),
    "calm": (Desk(), LIVE, Polled(CALM, 0.3)),
    "pending": (PAUSING, LIVE, Polled(SHEET, 0.3)),
    "sending": (change_desk.sending(PAUSING), LIVE, Polled(SHEET, 0.3)),
    "refused": (refused(PAUSING), LIVE, Polled(SHEET, 0.3)),
    "asking": (Desk(), LIVE, Polled()),
    "failed": (Desk(), LIVE, Polled(failure="throttle: the host says no " * 9)),
    "old": (Desk(), LIVE, Polled(SHEET, -60.0, "throttle: the host says no")),
    "dead": (Desk(), state_of(sample.dead()), Polled(SHEET, 0.3)),
    "viewer": (Desk(), state_of(sample_live.live(), role=Role.VIEWER), Polled(SHEET, 0.3)),
}


@pytest.mark.parametrize("scene", SCENES)
@given(width=st.integers(1, 240), height=st.integers(1, 80))
@settings(max_examples=50, deadline=None)
def test_a_page_has_exactly_the_size_of_its_terminal(scene, width, height):
    desk, state, polled = SCENES[scene]
    rows = throttle_page(state, desk, polled, Moment(0.5, sample.AT), width, height)
    assert [cells(row) for row in rows] == [width] * height


def named(sheet: ThrottleSheet) -> st.SearchStrategy[ThrottleSheet]:
    """The same with values from outside under the names that the page knows."""
    names = st.sampled_from([str(name) for name in LimitName])
    found = st.dictionaries(names, anything(Limit), max_size=4)
    return found.map(lambda some: msgspec.structs.replace(sheet, limits={**sheet.limits, **some}))


@given(
    anything(ThrottleSheet).flatmap(named),
    anything(ThrottleSheet).flatmap(named),
    st.text(max_size=60),
    st.integers(-12, 12),
    st.integers(20, 200),
    st.integers(2, 60),
)
@settings(max_examples=150, suppress_health_check=list(HealthCheck), deadline=None)
def test_nothing_a_host_can_send_breaks_a_page_or_drives_the_terminal(first, second, words, steps, width, height):
    desk = change_desk.moved(Desk(failure=words), desks.rows(first), steps)
    for change in (
        lambda desk: desks.nudged(desk, first, 1),
        lambda desk: desks.nudged(desk, first, -1),
        change_desk.sending,
        lambda desk: desks.done(desk, words, first),
        lambda desk: desks.taken_off(desk, first),
        lambda desk: desks.followed(desk, second),
        lambda desk: desks.reset(change_desk.dropped(desk), first),
        lambda desk: desks.typed(desk, second, words),
        lambda desk: desks.typed(change_desk.typing(desks.pausing(desk, first), True, is_reason=True), first, words),
    ):
        desk = change(desk)
        for sheet in (first, second):
            rows = throttle_page(LIVE, desk, Polled(sheet, 0.3), Moment(0.5, sample.AT), width, height)
            assert [cells(row) for row in rows] == [width] * height
            assert not any(unicodedata.category(c) == "Cc" for row in rows for c in plain_text(row))


# --- what is shown ----------------------------------------------------------------------------------------------


def test_each_limit_stands_with_the_profiles_value_and_whose_it_is():
    text = page()
    assert "▸ max_inflight              16        64  maria at 14:03:22, until 14:13:22" in text
    assert "  prompt_token_rate      2,000     2,000  –" in text
    assert "  prompt_token_burst      none      none  –" in text
    assert "  hold_deadline_s           20        30  ops at 13:48:22" in text
    assert "  auto                      on            ops at 14:04:12" in text
    assert "choices that the engine works on at once; n = 4 counts as four" in text


FIGURES = (
    "why          max_inflight: KV pressure",
    "auto         cap 32 (maria's wins)  kv 94%",
    "             14:04:58 KV 94 % for 3 s: cap 64 → 32",
    "gate now     12 in flight, 3 held, the oldest for 1.20 s",
    "since start  12,345 admitted, 400 had to wait, 17 refused, 2 gone",
    "             refused: queue_full 10, deadline 7",
)


@pytest.mark.parametrize("desk", [Desk(), PAUSING, refused(PAUSING), change_desk.sending(PAUSING)])
def test_80x24_holds_what_is_in_force_and_why_what_the_controller_did_and_what_was_refused(desk):
    text = page(desk)
    assert [part for part in FIGURES if part not in text] == []
    assert all(f" {name} " in text for name in [*LimitName, AUTO])


def test_the_reasons_of_all_that_is_set_are_told_the_cursors_first():
    drained = Limit(value=True, profile=False, who="ops", reason="driver update")
    sheet = sample_throttle.sheet(limits={**SHEET.limits, "draining": drained})
    assert "why          max_inflight: KV pressure; draining: driver update\n" in page(Desk(), sheet)
    assert "why          draining: driver update; max_inflight: KV pressure\n" in page(at("draining", sheet), sheet)


def test_a_wide_terminal_has_each_reason_in_its_row():
    text = page(width=120, height=39)
    assert "16        64  maria at 14:03:22, until 14:13:22       KV pressure" in text
    assert "why  " not in text
    assert text.splitlines()[2].index("reason") == text.splitlines()[3].index("KV pressure")


def test_with_room_the_thresholds_the_waits_and_the_classes_are_told_too():
    text = page(width=120, height=39)
    for part in ("kv          0.94  down above 0.90, up below 0.80", "p50 210 ms", "high                        3"):
        assert part in text
        assert part not in page()


def test_a_cap_of_the_controller_says_so_and_its_reason_once():
    mine = Limit(value=32, profile=64, who="auto", reason="KV 94 % for 3 s: cap 64 → 32", since=NOW - 4)
    text = page(sheet=sample_throttle.sheet(limits=limits(max_inflight=mine)))
    assert "max_inflight              32        64  auto at 14:04:58" in text
    assert text.count("KV 94 % for 3 s") == 1


@pytest.mark.parametrize(("mode", "said"), [(AutoMode.ON, "cap 32"), (AutoMode.OBSERVE, "cap would be 32")])
def test_the_controller_says_whether_it_acts_or_only_would(mode, said):
    auto = msgspec.structs.replace(SHEET.auto, mode=mode, overruled_by=None)
    assert f"auto         {said}  kv 94%" in page(sheet=sample_throttle.sheet(auto=auto))


def test_all_that_the_controller_watches_stands_beside_its_cap_on_80_columns():
    figures = {"kv": 0.94, "waiting": 16.0, "preemptions": 0.3, "ttft_p95": 1.2}
    gauges = [AutoGauge(name=name, value=value, enter=1.0, leave=0.5) for name, value in figures.items()]
    auto = msgspec.structs.replace(SHEET.auto, gauges=gauges)
    text = page(sheet=sample_throttle.sheet(auto=auto))
    assert "cap 32 (maria's wins)  kv 94%  wait 16  preempt 0.30  ttft 1.20 s\n" in text


def test_a_controller_that_has_not_acted_yet_says_so_and_one_that_is_off_says_nothing():
    fresh = AutoState(mode=AutoMode.ON, gauges=[AutoGauge(name="kv", value=0.4, enter=0.9, leave=0.8)])
    assert "auto         cap none  kv 40%\n             it has done nothing yet" in page(
        sheet=sample_throttle.sheet(auto=fresh)
    )
    assert "\nauto  " not in page(sheet=CALM)


def test_what_is_closed_stands_out():
    shut = Limit(value=True, profile=False, who="ops", since=NOW)
    rows = throttle_page(
        LIVE,
        Desk(),
        Polled(sample_throttle.sheet(limits=limits(paused=shut)), 0.3),
        Moment(0.5, sample.AT),
        80,
        23,
    )
    row = next(row for row in rows if plain_text(row).startswith("  paused"))
    assert [tone for text, tone in row if text.strip() == "yes"] == [Tone.WARN]


@pytest.mark.parametrize(("height", "name"), [(6, "auto"), (8, "paused"), (5, "draining"), (10, "max_inflight")])
def test_on_a_low_terminal_the_cursor_and_the_question_are_in_sight(height, name):
    desk = desks.nudged(at(name), SHEET, 1)
    text = page(desk, height=height)
    assert f"▸ {name}" in text
    assert "enter sets it" in text


def test_a_number_too_wide_for_its_column_is_told_in_short():
    wide = limits(
        prompt_token_burst=Limit(value=1_000_000_000, profile=123_456_789, who="o" * 40, since=NOW, until=NOW)
    )
    assert "prompt_token_burst     1.00G      123M  ooooooooo… at" in page(sheet=sample_throttle.sheet(limits=wide))


def test_the_page_works_without_an_engine():
    dead = state_of(sample.dead())
    assert "▸ max_inflight              16" in page(state=dead)
    assert labels(Desk(), dead) >= {"more", "less", "value", "pause"}


def test_old_values_fade_and_are_said_to_be_old():
    rows = throttle_page(LIVE, Desk(), Polled(SHEET, 0.3), Moment(30.0, sample.AT), 80, 23)
    assert any("STALE" in plain_text(row) for row in rows)
    row = next(row for row in rows if "max_inflight" in plain_text(row))
    assert {tone for text, tone in row if text.strip()} == {Tone.FAINT}


def test_what_a_limit_returns_to_is_told_beside_its_reason_where_an_operator_set_it():
    over = Limit(
        value=True, profile=False, who="ops", reason="second", since=NOW, until=NOW, then=Former(value=True, who="root")
    )
    sheet = sample_throttle.sheet(limits=limits(max_inflight=Limit(value=64, profile=64), paused=over))
    assert "why          paused: second, from 14:05:02 as before: yes, by root" in page(Desk(), sheet)
    assert "second, from 14:05:02 as before: yes, by root" in page(Desk(), sheet, width=160)


def test_without_an_answer_it_says_what_is_asked_for_or_why_there_is_none():
    moment = Moment(0.5, sample.AT)
    text = "\n".join(plain_text(row) for row in throttle_page(LIVE, Desk(), Polled(), moment, 80, 23))
    assert "asking for the limits …" in text
    failed = Polled(failure="throttle: no such method. Update the host.")
    text = "\n".join(plain_text(row) for row in throttle_page(LIVE, Desk(), failed, moment, 80, 23))
    assert "× throttle: no such method. Update the host." in text
    assert not labels(Desk(), sheet=None) & CHANGES
