"""The dials screen as text, and how a change is made on its desk: without a terminal, without a host."""

from __future__ import annotations

import unicodedata

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from console import change_desk, dials_desk
from console.change_desk import Pending
from console.dials_desk import Desk, step_of, stepped
from console.dials_page import dials_page
from console.frame import Moment
from console.lines import Tone, cells, plain_text
from console.model import Disconnected, Freeze, SnapshotArrived, reduce
from console.tui.offers import offered
from engine_host.protocol.methods import Role
from engine_host.protocol.snapshot import Dial, Snapshot
from tests.console import sample, sample_live, sample_switch
from tests.console.anything import anything
from tests.console.test_dial_effect import after
from tests.console.test_overview import state_of

LIVE = state_of(sample_live.live())
ON_K = Desk(chosen="speculative_tokens")
PENDING = dials_desk.proposed(Desk(), LIVE, "speculative_tokens", 3)


def page(desk=ON_K, state=LIVE, width=80, height=23, now=0.5):
    return "\n".join(plain_text(row).rstrip() for row in dials_page(state, desk, Moment(now, sample.AT), width, height))


def labels(desk, state=LIVE):
    return [a.label for a in offered(dials_desk.place(desk, state), state)]


SCENES = {
    "still": (ON_K, LIVE),
    "pending": (PENDING, LIVE),
    "sending": (change_desk.sending(PENDING), LIVE),
    "refused": (change_desk.refused(PENDING, "it was refused " * 20), LIVE),
    "slower": (ON_K, after(18)),
    "none": (Desk(), state_of(sample_live.no_scheduler())),
    "dead": (ON_K, state_of(sample.dead())),
    "switching": (PENDING, state_of(sample_switch.switching())),
}


@pytest.mark.parametrize("scene", SCENES)
@given(width=st.integers(1, 240), height=st.integers(1, 80))
@settings(max_examples=50, deadline=None)
def test_a_page_has_exactly_the_size_of_its_terminal(scene, width, height):
    desk, state = SCENES[scene]
    rows = dials_page(state, desk, Moment(0.5, sample.AT), width, height)
    assert [cells(row) for row in rows] == [width] * height


@given(anything(Snapshot), anything(Snapshot), st.text(max_size=60), st.integers(20, 200), st.integers(2, 60))
@settings(max_examples=150, suppress_health_check=list(HealthCheck), deadline=None)
def test_nothing_a_host_can_send_breaks_a_page_or_drives_the_terminal(first, second, words, width, height):
    state = reduce(state_of(first), SnapshotArrived(second, 0.3))
    desk = Desk(failure=words)
    for change in (
        lambda desk: dials_desk.followed(desk, state),
        lambda desk: dials_desk.nudged(desk, state, 1),
        lambda desk: dials_desk.reverting(change_desk.dropped(desk), state, words),
        lambda desk: dials_desk.reset(desk, state),
    ):
        desk = change(desk)
        rows = dials_page(state, desk, Moment(0.5, sample.AT), width, height)
        assert [cells(row) for row in rows] == [width] * height
        assert not any(unicodedata.category(c) == "Cc" for row in rows for c in plain_text(row))


def test_each_dial_stands_with_its_range_its_start_and_whose_it_is():
    text = page()
    assert "  max_active_seqs           64      1 to 256     256  maria 07:28:20, 8m02s left" in text
    assert "  max_scheduled_tokens   8,192   16 to 8,192   8,192  –" in text
    assert "▸ speculative_tokens         5        0 to 8       8  ops 06:43:20" in text
    assert "K: tokens drafted a request and step; 0 drafts none" in text
    assert "reason: batch job tonight" in page(Desk(chosen="max_active_seqs"))


def test_throughput_load_and_acceptance_stand_beside_them():
    assert "out 2.14k /s  (10 s)  run 37  wait 12  accepted 71.2 %  (1 min)" in page()


def test_a_change_is_shown_before_it_is_sent():
    text = page(PENDING)
    assert "▸ speculative_tokens 5 → 3? enter sets it, esc leaves it" in text
    assert "enter" in [a.shown for a in offered(dials_desk.place(PENDING, LIVE), LIVE) if a.label == "set it"]
    assert change_desk.dropped(PENDING).pending is None


def test_a_change_asks_for_what_was_seen():
    order = dials_desk.order(PENDING.pending, "from the console", "key-1")
    assert order.values == {"speculative_tokens": 3}
    assert order.expected == {"speculative_tokens": 5}
    assert (order.reason, order.idempotency_key, order.for_s) == ("from the console", "key-1", None)


def test_a_change_can_be_made_for_a_while():
    lasting = change_desk.lasting_next(change_desk.lasting_next(PENDING))
    assert "speculative_tokens 5 → 3 for 10 min? " in page(lasting)
    assert dials_desk.order(lasting.pending, "", "k").for_s == 600.0
    for _ in range(3):
        lasting = change_desk.lasting_next(lasting)
    assert lasting.pending.for_s is None


def test_a_change_goes_up_and_down_within_the_range_and_back_to_nothing():
    desk = ON_K
    for _ in range(9):
        desk = dials_desk.nudged(desk, LIVE, 1)
    assert desk.pending.value == 8
    for _ in range(3):
        desk = dials_desk.nudged(desk, LIVE, -1)
    assert desk.pending is None
    for _ in range(9):
        desk = dials_desk.nudged(desk, LIVE, -1)
    assert desk.pending.value == 0


def test_a_step_keeps_how_long_the_change_is_to_last():
    desk = dials_desk.nudged(change_desk.lasting_next(dials_desk.nudged(ON_K, LIVE, -1)), LIVE, -1)
    assert (desk.pending.value, desk.pending.for_s) == (3, 60.0)


@pytest.mark.parametrize(
    ("low", "high", "step"), [(0, 8, 1), (1, 256, 4), (16, 8_192, 128), (1, 1, 1), (5, 2, 1), (0, 40, 1)]
)
def test_a_step_fits_the_range(low, high, step):
    assert step_of(Dial(value=low, low=low, high=high, start=low)) == step


def test_steps_are_round_numbers():
    dial = Dial(value=1, low=1, high=256, start=256)
    assert [stepped(dial, 1, 1), stepped(dial, 6, 1), stepped(dial, 6, -1), stepped(dial, 2, -1)] == [4, 8, 4, 1]
    assert stepped(dial, 256, 1) == 256


@pytest.mark.parametrize("text", ["", "x", "-1", "9", "1.5", "９", "1e3", "9" * 40])
def test_what_is_typed_and_is_no_value_is_said_with_the_range(text):
    found = dials_desk.typed(change_desk.typing(ON_K, True), LIVE, text)
    assert found.typing_fault == "a whole number from 0 to 8"
    assert found.is_typing
    assert found.pending is None


def test_what_is_typed_becomes_a_change_to_agree_to():
    found = dials_desk.typed(change_desk.typing(Desk(chosen="max_scheduled_tokens"), True), LIVE, " 4,096 ")
    assert found.pending == Pending("max_scheduled_tokens", 8_192, 4_096)
    assert not found.is_typing


def test_the_start_value_is_asked_for_as_such():
    desk = dials_desk.reset(ON_K, LIVE)
    assert "speculative_tokens 5 → 8 (its start)? " in page(desk)
    assert dials_desk.order(desk.pending, "", "k").values == {"speculative_tokens": None}
    still = dials_desk.reset(Desk(chosen="max_scheduled_tokens"), LIVE)
    assert still.pending is None
    assert "stands where the engine was started" in page(still)


def test_a_dial_that_somebody_else_moves_meanwhile_drops_the_change_and_says_so():
    found = dials_desk.followed(PENDING, state_of(sample_live.later(1, k=2)))
    assert found.pending is None
    text = " ".join(page(found).split())
    assert "speculative_tokens was set to 2 by ops meanwhile; your change was not sent." in text


def test_an_engine_without_the_dial_any_more_drops_the_change():
    base = sample_live.live()
    dials = {name: dial for name, dial in base.dials.items() if name != "speculative_tokens"}
    found = dials_desk.followed(PENDING, state_of(sample_live.live(dials=dials)))
    assert "there is no such dial now" in found.failure


def test_while_a_change_is_sent_no_other_can_be_made():
    sending = change_desk.sending(PENDING)
    assert "speculative_tokens 5 → 3: waiting until the scheduler has applied it …" in page(sending)
    assert not {"more", "less", "set it", "value"} & set(labels(sending))


def test_what_the_host_says_is_shown():
    done = dials_desk.done(change_desk.sending(PENDING), "speculative_tokens 5 → 3")
    assert "● speculative_tokens 5 → 3" in page(done)
    refused = change_desk.refused(change_desk.sending(PENDING), "speculative_tokens is 4 (set by maria)")
    assert "× speculative_tokens is 4 (set by maria)" in page(refused)


def test_what_was_made_is_told_while_the_dial_stands_there():
    made = dials_desk.done(change_desk.sending(PENDING), "speculative_tokens 5 → 3")
    not_shown_yet = dials_desk.followed(made, LIVE)
    assert not_shown_yet.done
    shown = dials_desk.followed(not_shown_yet, state_of(sample_live.later(1, k=3)))
    assert shown.done
    assert dials_desk.followed(shown, state_of(sample_live.later(2, k=3))).done
    assert not dials_desk.followed(shown, state_of(sample_live.later(2, k=2))).done


def test_another_host_knows_nothing_of_what_was_made_or_refused():
    sending = change_desk.sending(PENDING)
    for desk in (dials_desk.done(sending, "5 → 3"), change_desk.refused(sending, "it was refused")):
        stays = dials_desk.followed(dials_desk.followed(desk, LIVE), LIVE)
        assert stays.done or stays.failure
        base = sample_live.live()
        other = msgspec.structs.replace(base, host=msgspec.structs.replace(base.host, boot_id="other"))
        found = dials_desk.followed(stays, state_of(other))
        assert (found.done, found.failure, found.chosen) == ("", "", "speculative_tokens")


def test_slower_after_a_move_is_said_with_both_numbers_and_a_way_back():
    text = " ".join(page(ON_K, after(18)).split())
    assert "▲ speculative_tokens 5 → 3 at 07:33:25 (ops): out 2.14k /s in the 10 s before, 1.65k /s in the 10 s" in text
    assert "22.9 % SLOWER" in text
    assert "u reverts it." in text
    assert "revert" in labels(ON_K, after(18))
    back = dials_desk.reverting(ON_K, after(18), "reverted: slower")
    assert back.pending == Pending("speculative_tokens", 3, 5, None, "reverted: slower")


def test_without_a_move_there_is_nothing_to_revert():
    assert "revert" not in labels(ON_K)
    assert dials_desk.reverting(ON_K, LIVE, "x") == ON_K


def test_a_viewer_sees_the_dials_and_moves_none():
    viewer = state_of(sample_live.live(), role=Role.VIEWER)
    assert "Read-only: to move one needs the operator role." in page(ON_K, viewer)
    assert not {"more", "less", "set it", "value", "start value"} & set(labels(ON_K, viewer))


@pytest.mark.parametrize("message", [Disconnected("gone", 1.0, 2.0), Freeze(0.5, sample.AT)])
def test_without_a_connection_and_on_a_frozen_page_no_dial_is_moved(message):
    state = reduce(LIVE, message)
    assert not {"more", "less", "value", "start value"} & set(labels(ON_K, state))


def test_an_engine_without_dials_says_why_and_offers_none():
    bare = state_of(sample_live.no_scheduler())
    text = " ".join(page(Desk(), bare).split())
    assert "– vLLM 0.40.1 is newer than what the scheduler inside is known to work with" in text
    assert not {"more", "less", "set it", "value", "start value", "revert"} & set(labels(Desk(), bare))
    assert "the host does not say why there are none" in page(Desk(), state_of(sample.serving()))


def test_without_drafts_the_dial_of_k_says_so():
    base = sample_live.live()
    dials = {name: dial for name, dial in base.dials.items() if name != "speculative_tokens"}
    text = page(Desk(), state_of(sample_live.live(dials=dials, speculation=sample.idle_cpu().speculation)))
    assert "speculative_tokens         –   this engine drafts no tokens" in text


def test_old_values_fade():
    rows = dials_page(LIVE, ON_K, Moment(30.0, sample.AT), 80, 23)
    row = next(row for row in rows if "max_scheduled_tokens" in plain_text(row))
    assert {tone for text, tone in row if text.strip()} == {Tone.FAINT}
