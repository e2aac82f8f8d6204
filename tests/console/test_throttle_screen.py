"""The throttle screen under a pilot: pausing, setting a limit once, the controller's mode, and what becomes of it."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from textual.widgets import Input, Static

from console.call_errors import CallFailed, ConnectionLost, NoAnswer
from console.model import Connected, Disconnected, SnapshotArrived
from console.tui.screens.overview import OverviewScreen
from console.tui.screens.throttle import ThrottleScreen
from engine_host.protocol.envelope import ErrorCode, RpcError
from engine_host.protocol.methods import NoParams, Role
from engine_host.protocol.throttling import AutoMode, Limit
from tests.console import sample, sample_throttle
from tests.console.sample_throttle import NOW as WALL
from tests.console.sample_throttle import limits
from tests.console.scripted_source import NOW, app
from tests.console.test_profiles_screen import go
from tests.console.test_tui import footer_of, text_of

SIZE = (80, 24)
METHODS = ("throttle.set", "throttle.clear", "throttle.auto")


def applied(text="max_inflight 16 → 18", **changed):
    return msgspec.structs.replace(sample_throttle.applied(**changed), text=text)


def at_throttle(snapshot=None, role=Role.ADMIN, **answers):
    running = app(snapshot or sample.serving(), role)
    running.script.answers |= {**dict.fromkeys(METHODS, applied()), **answers}
    return running


def sent(running):
    return [(method, params) for method, params in running.script.acted if method in METHODS]


async def later(running, pilot, seconds=1.0):
    """The clock goes on, and the page asks again."""
    running.now += seconds
    running.script.post(SnapshotArrived(sample.serving(), running.now))
    await pilot.pause()
    await pilot.pause()


# --- what an operator on call does ------------------------------------------------------------------------------


async def test_two_keys_pause_and_two_let_go_again():
    shut = {"paused": Limit(value=True, profile=False, who="ops", since=WALL)}
    running = at_throttle(**{"throttle.set": applied("paused", **shut)})
    async with running.run_test(size=SIZE) as pilot:
        await go(pilot, "6", "P")
        assert "▸ paused no → yes? enter sets it, esc leaves it" in text_of(running)
        assert sent(running) == []
        running.script.answers["throttle.get"] = sample_throttle.sheet(limits=limits(**shut))
        await go(pilot, "enter")
        assert "● paused" in text_of(running)
        running.script.post(SnapshotArrived(sample.paused(), running.now))
        await pilot.pause()
        assert "PAUSED" in text_of(running)
        assert "P resume" in footer_of(running)
        await go(pilot, "P", "enter")
    (first, pause), (second, resume) = sent(running)
    assert (first, second) == ("throttle.set", "throttle.set")
    assert (pause.limits, pause.expected) == ({"paused": True}, {"paused": False})
    assert (resume.limits, resume.expected) == ({"paused": False}, {"paused": True})
    assert pause.reason and len(pause.idempotency_key) >= 16
    assert pause.idempotency_key != resume.idempotency_key


async def test_a_cap_is_typed_for_ten_minutes():
    running = at_throttle()
    async with running.run_test(size=SIZE) as pilot:
        await go(pilot, "6", "enter", "8", "enter", "t", "t")
        assert "max_inflight 16 → 8 for 10 min? enter sets it" in text_of(running)
        await go(pilot, "enter")
    [(method, params)] = sent(running)
    assert method == "throttle.set"
    assert (params.limits, params.expected, params.for_s) == ({"max_inflight": 8}, {"max_inflight": 16}, 600.0)


async def test_the_controller_is_set_to_observe():
    running = at_throttle()
    async with running.run_test(size=SIZE) as pilot:
        await go(pilot, "6", "end", "enter", "right")
        assert "auto on → observe? enter sets it" in text_of(running)
        await go(pilot, "enter")
    [(method, params)] = sent(running)
    assert (method, params.mode, params.for_s) == ("throttle.auto", AutoMode.OBSERVE, None)


@pytest.mark.parametrize(("keys", "name"), [((), "max_inflight"), (("end",), "auto")])
async def test_what_was_set_is_cleared(keys, name):
    running = at_throttle()
    async with running.run_test(size=SIZE) as pilot:
        await go(pilot, "6", *keys, "r", "enter")
    [(method, params)] = sent(running)
    assert (method, params.names) == ("throttle.clear", [name])


async def test_a_limit_is_taken_off():
    running = at_throttle()
    async with running.run_test(size=SIZE) as pilot:
        await go(pilot, "6", "n")
        assert "max_inflight 16 → none? enter sets it" in text_of(running)
        await go(pilot, "enter")
    [(_, params)] = sent(running)
    assert params.limits == {"max_inflight": None}


async def test_a_reason_can_be_given_before_it_is_agreed_to():
    running = at_throttle()
    async with running.run_test(size=SIZE) as pilot:
        await go(pilot, "6", "P")
        assert "w why" in footer_of(running)
        await go(pilot, "w", *"disk", "enter")
        assert "why: disk" in text_of(running)
        await go(pilot, "w", "s", "escape")
        assert "why: disk" in text_of(running)
        await go(pilot, "enter")
    [(_, params)] = sent(running)
    assert (params.limits, params.reason) == ({"paused": True}, "disk")


# --- keys -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("key", "value"), [("plus", 18), ("equals_sign", 18), ("right", 18), ("left", 14)])
async def test_there_is_a_key_for_a_step_on_every_keyboard(key, value):
    running = at_throttle()
    async with running.run_test(size=SIZE) as pilot:
        await go(pilot, "6", key)
        assert running.screen.desk.pending.value == value


@pytest.mark.parametrize("row", range(11))
async def test_enter_does_something_on_every_row(row):
    running = at_throttle()
    async with running.run_test(size=SIZE) as pilot:
        await go(pilot, "6", *["down"] * row, "enter")
        assert running.screen.desk.pending is not None or running.screen.desk.is_typing


async def test_escape_leaves_the_change_and_then_the_page():
    running = at_throttle()
    async with running.run_test(size=SIZE) as pilot:
        await go(pilot, "6", "minus", "t", "escape")
        assert isinstance(running.screen, ThrottleScreen)
        assert "enter sets it" not in text_of(running)
        await go(pilot, "escape")
        assert isinstance(running.screen, OverviewScreen)
    assert sent(running) == []


async def test_a_value_that_is_none_is_said_so_and_can_be_mended():
    running = at_throttle()
    async with running.run_test(size=SIZE) as pilot:
        await go(pilot, "6", *["down"] * 5, "enter", "x", "enter")
        label = str(running.screen.query_one("#entry_label", Static).content)
        assert label.startswith("hold_queue ▲ 0 to 1,000,000:")
        assert running.screen.query_one("#entry_text", Input).value == "x"
        await go(pilot, "backspace", "9", "enter")
        assert "hold_queue 256 → 9? enter sets it" in text_of(running)
        assert running.focused is None


async def test_escape_while_typing_changes_nothing_and_digits_open_no_page():
    running = at_throttle()
    async with running.run_test(size=SIZE) as pilot:
        await go(pilot, "6", "enter", "3", "7", "escape")
        assert isinstance(running.screen, ThrottleScreen)
        assert running.screen.desk.pending is None
        await go(pilot, "3")
        assert not isinstance(running.screen, ThrottleScreen)


async def test_a_key_that_does_nothing_on_a_row_says_so():
    running = at_throttle()
    async with running.run_test(size=SIZE) as pilot:
        await go(pilot, "6", "end")
        assert "n no limit" not in footer_of(running)
        await go(pilot, "n")
        assert "n does nothing here" in footer_of(running)


# --- what becomes of it -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (NoAnswer("throttle.set", 10), "no answer to throttle.set within 10 s; its outcome is unknown."),
        (ConnectionLost("the host closed it"), "The outcome is unknown; it is not sent again."),
        (
            CallFailed(
                "throttle.set",
                RpcError(ErrorCode.CONFLICT, "max_inflight is 8", {"remedy": "look again: vllm-console throttle show"}),
            ),
            "× throttle: max_inflight is 8. Look again",
        ),
    ],
)
async def test_a_change_that_was_not_made_says_why_and_is_not_sent_again(error, said):
    running = at_throttle(**{"throttle.set": error})
    async with running.run_test(size=SIZE) as pilot:
        await go(pilot, "6", "minus", "enter")
        assert said in " ".join(text_of(running).split())
        await later(running, pilot)
        assert said in " ".join(text_of(running).split())
        assert len(sent(running)) == 1


async def test_the_answer_is_shown_at_once_and_not_at_the_next_look():
    running = at_throttle(**{"throttle.set": applied(max_inflight=Limit(value=18, profile=64, who="ops"))})
    async with running.run_test(size=SIZE) as pilot:
        await go(pilot, "6", "plus", "enter")
        assert "▸ max_inflight              18        64  ops" in text_of(running)
        assert running.script.read.count(("throttle.get", NoParams())) == 1


async def test_while_the_answer_is_waited_for_no_other_change_is_begun():
    answer = asyncio.get_running_loop().create_future()
    running = at_throttle(**{"throttle.set": answer})
    async with running.run_test(size=SIZE) as pilot:
        await go(pilot, "6", "minus", "enter")
        assert "waiting until the gate goes by it" in text_of(running)
        await go(pilot, "minus", "P", "enter", "enter")
        assert len(sent(running)) == 1
        answer.set_result(applied())
        await pilot.pause()
        assert "● max_inflight 16 → 18" in text_of(running)


async def test_who_has_gone_elsewhere_is_told_in_the_footer():
    answer = asyncio.get_running_loop().create_future()
    running = at_throttle(**{"throttle.set": answer})
    async with running.run_test(size=SIZE) as pilot:
        await go(pilot, "6", "minus", "enter", "1")
        answer.set_result(applied())
        await pilot.pause()
        assert "throttle: max_inflight 16 → 18" in footer_of(running)


async def test_a_row_that_another_operator_moves_meanwhile_ends_the_change_unsent():
    running = at_throttle()
    async with running.run_test(size=SIZE) as pilot:
        await go(pilot, "6", "minus")
        moved = Limit(value=8, profile=64, who="maria", since=WALL)
        running.script.answers["throttle.get"] = sample_throttle.sheet(limits=limits(max_inflight=moved))
        await later(running, pilot)
        said = " ".join(text_of(running).split())
        assert "max_inflight was set to 8 by maria meanwhile; your change was not sent." in said
        await go(pilot, "escape")
    assert sent(running) == []


async def test_a_refusal_goes_when_the_value_that_stood_in_the_way_is_gone():
    error = CallFailed("throttle.set", RpcError(ErrorCode.CONFLICT, "max_inflight is 99; this call expected 16", {}))
    running = at_throttle(**{"throttle.set": error})
    async with running.run_test(size=SIZE) as pilot:
        await go(pilot, "6", "minus", "enter")
        for value, is_told in ((16, True), (99, True), (99, True), (16, False)):
            row = Limit(value=value, profile=64, who="maria", since=WALL)
            running.script.answers["throttle.get"] = sample_throttle.sheet(limits=limits(max_inflight=row))
            await later(running, pilot)
            assert ("max_inflight is 99; this" in text_of(running)) is is_told


async def test_the_footer_says_what_the_key_for_a_span_does():
    running = at_throttle()
    async with running.run_test(size=SIZE) as pilot:
        await go(pilot, "6", "minus")
        assert "t next span" in footer_of(running)


async def test_another_host_is_asked_anew_and_owes_nothing():
    running = at_throttle()
    async with running.run_test(size=SIZE) as pilot:
        await go(pilot, "6", "minus")
        asked = len(running.script.read)
        running.script.answers["throttle.get"] = sample_throttle.sheet(limits=limits())
        running.now += 1
        running.script.post(Connected(msgspec.structs.replace(sample.hello(Role.ADMIN), boot_id="other"), running.now))
        running.script.post(SnapshotArrived(sample.serving(), running.now))
        await pilot.pause()
        await pilot.pause()
        assert running.screen.desk.pending is None
        assert len(running.script.read) > asked
        assert "▸ max_inflight              64        64  –" in text_of(running)


# --- who may, and when ------------------------------------------------------------------------------------------


async def test_a_viewer_can_set_nothing_and_is_told_why():
    running = at_throttle(role=Role.VIEWER)
    async with running.run_test(size=SIZE) as pilot:
        await go(pilot, "6")
        assert "Read-only: to set one needs the operator role." in text_of(running)
        for key, label in (("P", "pause"), ("plus", "more"), ("enter", "value"), ("r", "profile's")):
            await go(pilot, key)
            assert footer_of(running) == f"{label}: needs the operator role."
        assert running.screen.desk.pending is None
    assert sent(running) == []


async def test_a_frozen_page_stands_still_and_sets_nothing():
    running = at_throttle()
    async with running.run_test(size=SIZE) as pilot:
        await go(pilot, "6", "p")
        running.script.answers["throttle.get"] = sample_throttle.sheet(limits=limits())
        await later(running, pilot)
        assert "▸ max_inflight              16" in text_of(running)
        await go(pilot, "P")
        assert "pause: off while the page is frozen" in footer_of(running)
        await go(pilot, "p")
        await later(running, pilot)
        assert "▸ max_inflight              64" in text_of(running)


async def test_an_answer_that_comes_to_a_frozen_page_is_told_but_moves_no_figure():
    answer = asyncio.get_running_loop().create_future()
    running = at_throttle(**{"throttle.set": answer})
    async with running.run_test(size=SIZE) as pilot:
        await go(pilot, "6", "plus", "enter", "p")
        answer.set_result(applied(max_inflight=Limit(value=18, profile=64, who="ops")))
        await pilot.pause()
        assert "● max_inflight 16 → 18" in text_of(running)
        assert "▸ max_inflight              16" in text_of(running)


async def test_without_a_connection_the_last_values_stay_and_nothing_is_set():
    running = at_throttle()
    async with running.run_test(size=SIZE) as pilot:
        await go(pilot, "6")
        running.script.post(Disconnected("the host closed it", NOW, NOW + 3))
        running.now += 30
        await go(pilot, "P")
        assert "NO CONNECTION" in text_of(running)
        assert "▸ max_inflight              16" in text_of(running)
        assert footer_of(running) == "pause: off while there is no connection."
    assert sent(running) == []


async def test_without_an_engine_the_gate_can_be_set():
    running = at_throttle(sample.dead())
    async with running.run_test(size=SIZE) as pilot:
        await go(pilot, "6", "P", "enter")
    assert len(sent(running)) == 1


@pytest.mark.parametrize("size", [(1, 1), (10, 3), (60, 12), (240, 60)])
async def test_no_size_of_terminal_breaks_the_screen(size):
    running = at_throttle()
    async with running.run_test(size=size) as pilot:
        for keys in (
            ["6"],
            ["minus"],
            ["t"],
            ["escape"],
            ["enter"],
            ["1"],
            ["enter"],
            ["end"],
            ["P"],
            ["question_mark"],
        ):
            await go(pilot, *keys)
        assert running.is_running
