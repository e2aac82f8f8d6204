"""How a change is made on the desk of the throttle screen, and what becomes of it: without a terminal or a host."""

from __future__ import annotations

import msgspec
import pytest

from console import change_desk
from console import throttle_desk as desks
from console.change_desk import Pending
from console.model import Disconnected, Freeze, reduce
from console.throttle_desk import Desk, stepped
from engine_host.protocol.methods import Role
from engine_host.protocol.throttling import AUTO, AutoMode, GateCounts, Limit, LimitName
from tests.console import sample, sample_live, sample_throttle
from tests.console.sample_throttle import NOW, limits
from tests.console.test_overview import state_of
from tests.console.test_throttle_page import CHANGES, FIGURES, LIVE, PAUSING, SHEET, at, labels, page, refused

# --- making a change --------------------------------------------------------------------------------------------


def test_the_cursor_goes_through_every_row_and_stays_at_the_ends():
    desk = Desk()
    names = [desks.chosen(desk, SHEET)]
    for _ in range(12):
        desk = change_desk.moved(desk, desks.rows(SHEET), 1)
        names.append(desks.chosen(desk, SHEET))
    assert names == [*LimitName, AUTO, AUTO, AUTO]
    assert change_desk.moved(desk, desks.rows(SHEET), -100).chosen == LimitName.MAX_INFLIGHT
    assert change_desk.moved(PAUSING, desks.rows(SHEET), 1) == PAUSING  # not while there is a question about one


def test_a_change_is_shown_before_it_is_sent():
    assert "▸ paused no → yes? enter sets it, esc leaves it" in page(PAUSING)
    assert "set it" in labels(PAUSING)
    assert change_desk.dropped(PAUSING).pending is None


def test_pausing_and_letting_go_again_need_no_cursor():
    assert PAUSING.pending == Pending("paused", False, True)
    shut = sample_throttle.sheet(limits=limits(paused=Limit(value=True, profile=False, who="ops")))
    assert desks.pausing(Desk(), shut).pending == Pending("paused", True, False)
    other = desks.nudged(Desk(), SHEET, -1)
    assert desks.pausing(other, SHEET).pending == Pending("paused", False, True)


@pytest.mark.parametrize(
    ("name", "inflight", "up", "down"),
    [("max_inflight", 12, 12, 12), ("max_inflight", 0, 1, 1), ("request_rate", 12, 1, 1)],
)
def test_steps_from_no_limit_begin_at_what_is_in_flight_else_at_one(name, inflight, up, down):
    sheet = sample_throttle.sheet(limits=limits(max_inflight=Limit(value=None, profile=None)))
    sheet = msgspec.structs.replace(sheet, counts=GateCounts(inflight=inflight))
    assert desks.nudged(at(name), sheet, 1).pending == Pending(name, None, up)
    assert desks.nudged(at(name), sheet, -1).pending == Pending(name, None, down)


def test_steps_are_round_and_end_at_the_bounds():
    assert [stepped(v, 1, 1, 1e9) for v in (1, 15, 16, 17, 100, 1000)] == [2, 16, 18, 18, 104, 1024]
    assert [stepped(v, -1, 1, 1e9) for v in (1, 2, 16, 18, 100, 1000)] == [1, 1, 14, 16, 96, 960]
    assert stepped(1e9, 1, 1, 1e9) == 1e9
    assert stepped(86_400, 1, 1, 86_400) == 86_400
    assert stepped(10**400, -1, 1, 1e9) == 1e9


@pytest.mark.parametrize("value", [0.5, 0.0, -3.0])
def test_a_step_down_never_leads_up(value):
    assert stepped(value, -1, 1, 1e9) == value
    assert stepped(value, 1, 1, 1e9) == 1


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [("hold_queue", 0, 1_000_000), ("hold_deadline_s", 1, 86_400), ("request_rate", 1, 10**9)],
)
def test_a_row_is_stepped_within_what_the_gate_takes(name, least, most):
    sheet = sample_throttle.sheet(limits=limits(request_rate=Limit(value=2.5, profile=None)))
    for direction, end in ((1, most), (-1, least)):
        desk = at(name)
        for _ in range(400):
            desk = desks.nudged(desk, sheet, direction)
        assert desk.pending.value == end


def test_a_step_away_and_back_is_no_change_with_a_fraction_too():
    sheet = sample_throttle.sheet(limits=limits(request_rate=Limit(value=16.0, profile=None)))
    there = desks.nudged(at("request_rate"), sheet, 1)
    assert there.pending.value == 18
    assert desks.nudged(there, sheet, -1).pending is None


@pytest.mark.parametrize(
    ("name", "leads_through"),
    [
        ("paused", [True, None, True]),
        ("draining", [True, None, True]),
        ("min_class", ["low", "high", None, "low"]),
        ("auto", ["off", "observe", None, "off"]),
    ],
)
def test_one_key_leads_through_all_the_values_of_a_row_with_few(name, leads_through):
    desk, found = at(name), []
    for _ in leads_through:
        desk = desks.nudged(desk, SHEET, 1)
        found.append(desk.pending.value if desk.pending is not None else None)
    assert found == leads_through
    back = desks.nudged(at(name), SHEET, -1)
    assert back.pending.value == (True if name in desks.SWITCHES else leads_through[1])


def test_a_profile_without_classes_has_none_to_choose():
    bare = sample_throttle.sheet(class_names=[])
    assert "min_class: the profile has no classes." in page(desks.nudged(at("min_class"), bare, 1), bare)


def test_a_class_that_is_no_more_can_be_left():
    gone = sample_throttle.sheet(limits=limits(min_class=Limit(value="gone", profile=None, who="ops")), class_names=[])
    assert desks.nudged(at("min_class"), gone, 1).pending == Pending("min_class", "gone", None)


def test_a_change_can_be_made_for_a_while_and_a_step_keeps_it():
    desk = change_desk.lasting_next(change_desk.lasting_next(desks.nudged(Desk(), SHEET, 1)))
    assert "max_inflight 16 → 18 for 10 min? " in page(desk)
    desk = desks.nudged(desk, SHEET, 1)
    assert (desk.pending.value, desk.pending.for_s) == (20, 600.0)
    for _ in range(3):
        desk = change_desk.lasting_next(desk)
    assert desk.pending.for_s is None
    assert change_desk.lasting_next(Desk()) == Desk()


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("max_inflight", " 1,024 ", 1024),
        ("max_inflight", "none", None),
        ("request_rate", "2.5", 2.5),
        ("prompt_token_burst", "NONE", None),
        ("hold_queue", "0", 0),
        ("hold_deadline_s", "45", 45.0),
        ("hold_deadline_s", "1m30s", 90.0),
    ],
)
def test_what_is_typed_becomes_a_change_to_agree_to(name, text, value):
    found = desks.typed(change_desk.typing(at(name), True), SHEET, text)
    assert found.pending == Pending(name, SHEET.limits[name].value, value)
    assert not found.is_typing
    assert not found.typing_fault


@pytest.mark.parametrize(
    ("name", "said", "texts"),
    [
        ("max_inflight", "1 to 1,000,000,000, or none", ["", "x", "0", "-1", "1.5", "９", "1e3", "9" * 400]),
        ("request_rate", "0.001 to 1,000,000,000, or none", ["", "0", "-1", "inf", "nan", "fast"]),
        ("hold_queue", "0 to 1,000,000", ["", "none", "-1", "1000001"]),
        ("hold_deadline_s", "seconds or 2m, at most 24h", ["", "none", "x", "25h"]),
    ],
)
def test_what_is_typed_and_is_no_value_is_said_with_what_would_be(name, said, texts):
    for text in texts:
        found = desks.typed(change_desk.typing(at(name), True), SHEET, text)
        assert (found.typing_fault, found.is_typing, found.pending) == (said, True, None)


def test_typing_the_value_in_force_makes_it_ones_own_or_last():
    found = change_desk.lasting_next(desks.typed(change_desk.typing(Desk(), True), SHEET, "16"))
    assert found.pending == Pending("max_inflight", 16, 16, 60.0)
    assert "max_inflight stays 16 for 1 min? " in page(found)


def test_a_reason_goes_along_through_steps_and_is_sent():
    desk = desks.typed(change_desk.typing(PAUSING, True, is_reason=True), SHEET, " driver check ")
    assert not desk.is_typing
    assert "▸ paused no → yes? enter sets it, esc leaves it\n    why: driver check" in page(desk)
    assert desks.order(desk.pending, "from the console", "k")[1].reason == "driver check"
    desk = change_desk.lasting_next(desks.nudged(desks.nudged(Desk(), SHEET, 1), SHEET, 1))
    desk = desks.typed(change_desk.typing(desk, True, is_reason=True), SHEET, "x" * 999)
    desk = desks.nudged(desk, SHEET, 1)
    assert (len(desk.pending.reason), desk.pending.for_s) == (change_desk.REASON_CHARS, 60.0)


def test_a_reason_typed_for_a_change_that_is_over_is_no_value():
    desk = change_desk.typing(desks.nudged(Desk(), SHEET, 1), True, is_reason=True)
    moved = sample_throttle.sheet(limits=limits(max_inflight=Limit(value=8, profile=64, who="ops", since=NOW)))
    desk = desks.typed(desks.followed(desk, moved), moved, "16")
    assert desk.pending is None
    assert not desk.is_typing_reason
    assert "your change was not sent" in desk.failure


def test_after_a_reason_that_is_not_kept_a_value_is_a_value_again():
    desk = change_desk.typing(change_desk.typing(Desk(), True, is_reason=True), False)
    assert desks.typed(change_desk.typing(desk, True), SHEET, "12").pending == Pending("max_inflight", 16, 12)


def test_a_limit_is_taken_off_even_where_the_profile_has_one():
    assert desks.taken_off(Desk(), SHEET).pending == Pending("max_inflight", 16, None)
    assert desks.taken_off(at("hold_queue"), SHEET) == at("hold_queue")
    assert "no such limit in force" in desks.taken_off(at("request_rate"), SHEET).failure


def test_no_cap_by_hand_keeps_the_controller_out():
    free = sample_throttle.sheet(limits=limits(max_inflight=Limit(value=None, profile=None)))
    assert desks.taken_off(Desk(), free).pending == Pending("max_inflight", None, None)


def test_back_to_the_profiles_is_asked_for_as_such():
    desk = desks.reset(Desk(), SHEET)
    assert "max_inflight 16 → the profile's 64? " in page(desk)
    still = desks.reset(at("request_rate"), SHEET)
    assert still.pending is None
    assert "request_rate stands where the profile puts it." in page(still)
    assert "auto on → the profile's? " in page(desks.reset(at(AUTO), SHEET))


def test_a_cap_of_the_controller_is_not_cleared_but_its_ways_out_are_named():
    mine = Limit(value=32, profile=64, who="auto", reason="KV 94 %", since=NOW - 4)
    sheet = sample_throttle.sheet(limits=limits(max_inflight=mine))
    found = desks.reset(Desk(), sheet)
    assert found.pending is None
    assert "wins over it, and so does auto off" in " ".join(page(found, sheet).split())


def test_what_is_sent_is_the_change_and_what_was_seen():
    method, order = desks.order(Pending("max_inflight", 16, 8, 600.0), "from the console", "key")
    assert method == "throttle.set"
    assert (order.limits, order.expected, order.for_s) == ({"max_inflight": 8}, {"max_inflight": 16}, 600.0)
    assert (order.reason, order.idempotency_key) == ("from the console", "key")
    method, order = desks.order(desks.reset(Desk(), SHEET).pending, "why", "key")
    assert (method, order.names, order.reason) == ("throttle.clear", ["max_inflight"], "why")
    assert order.expected == {"max_inflight": 16}
    method, order = desks.order(Pending(AUTO, "on", "observe", 60.0), "why", "key")
    assert (method, order.mode, order.for_s, order.reason) == ("throttle.auto", AutoMode.OBSERVE, 60.0, "why")
    assert order.expected is AutoMode.ON


# --- what becomes of it -----------------------------------------------------------------------------------------


def test_a_row_that_somebody_else_moves_meanwhile_drops_the_change_and_says_so():
    desk = desks.nudged(Desk(), SHEET, 1)
    assert desks.followed(desk, SHEET) == desk
    moved = sample_throttle.sheet(limits=limits(max_inflight=Limit(value=8, profile=64, who="ops", since=NOW)))
    found = desks.followed(desk, moved)
    assert found.pending is None
    text = " ".join(page(found, moved).split())
    assert "max_inflight was set to 8 by ops meanwhile; your change was not sent." in text
    gone = msgspec.structs.replace(SHEET, limits={})
    assert "there is no such limit now" in desks.followed(desk, gone).failure


def test_while_a_change_is_sent_no_other_can_be_made():
    sending = change_desk.sending(PAUSING)
    assert "paused no → yes: waiting until the gate goes by it …" in page(sending)
    assert not labels(sending) & CHANGES


def test_what_the_host_says_is_shown_and_only_as_long_as_it_holds():
    shut = sample_throttle.sheet(limits=limits(paused=Limit(value=True, profile=False, who="ops")))
    made = desks.done(change_desk.sending(PAUSING), "paused", shut)
    assert "● paused" in page(made, shut)
    assert desks.followed(made, shut).done == "paused"
    assert desks.followed(made, SHEET).done == ""
    assert "× it was refused" in page(refused(PAUSING))
    assert desks.followed(refused(PAUSING), SHEET).failure


def test_a_long_answer_is_cut_rather_than_the_figures():
    text = page(refused(PAUSING))
    assert "…" in text
    assert FIGURES[-1] in text


def test_another_host_knows_nothing_of_what_was_made():
    for desk in (PAUSING, change_desk.sending(PAUSING), refused(PAUSING), desks.done(PAUSING, "done", SHEET)):
        assert desks.forgotten(desk) == Desk(chosen="paused")


# --- who may, and when ------------------------------------------------------------------------------------------


def test_a_viewer_sees_the_limits_and_sets_none():
    viewer = state_of(sample_live.live(), role=Role.VIEWER)
    assert "Read-only: to set one needs the operator role." in page(state=viewer)
    assert [part for part in FIGURES if part not in page(state=viewer)] == []
    for name in [*LimitName, AUTO]:
        assert not labels(at(name), viewer) & CHANGES


@pytest.mark.parametrize("message", [Disconnected("gone", 1.0, 2.0), Freeze(0.5, sample.AT)])
def test_without_a_connection_and_on_a_frozen_page_nothing_is_set(message):
    state = reduce(LIVE, message)
    for desk in (Desk(), at("paused"), PAUSING):
        assert not labels(desk, state) & CHANGES


def test_only_what_can_be_done_to_a_row_is_offered():
    assert {"value", "no limit", "pause"} <= labels(Desk())
    assert "next" not in labels(Desk())
    assert "next" in labels(at("paused"))
    assert not {"value", "no limit"} & labels(at("paused"))
    assert "no limit" in labels(at("min_class"))
    assert "no limit" not in labels(at("hold_queue"))
