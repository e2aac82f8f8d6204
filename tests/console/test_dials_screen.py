"""The dials screen under a pilot: making a change, sending it once, and the way from the recommendation."""

from __future__ import annotations

import asyncio

import pytest
from textual.widgets import Input, Static

from console.call_errors import CallFailed, ConnectionLost, NoAnswer
from console.model import SnapshotArrived
from console.tui.screens.dials import DialsScreen
from console.tui.screens.overview import OverviewScreen
from console.tui.screens.speculation import SpeculationScreen
from engine_host.protocol.envelope import ErrorCode, RpcError
from engine_host.protocol.methods import DialsApplied, Role
from engine_host.protocol.snapshot import State as HostState
from tests.console import sample_live
from tests.console.scripted_source import NOW, app
from tests.console.test_profiles_screen import go
from tests.console.test_tui import footer_of, text_of

SIZE = (80, 24)


def applied(text="speculative_tokens 5 → 4"):
    return DialsApplied(
        state=HostState.SERVING, state_version=7, took_s=0.02, text=text, dials=sample_live.later(0, k=4).dials
    )


def at_dials(snapshot=None, role=Role.ADMIN, **answers):
    running = app(snapshot or sample_live.live(), role)
    running.script.answers |= {"dials.set": applied(), **answers}
    return running


ON_K = ("8", "down", "down")


async def test_a_step_is_sent_by_enter_with_what_was_seen_a_reason_and_a_key():
    running = at_dials()
    async with running.run_test(size=SIZE) as pilot:
        await go(pilot, *ON_K, "minus")
        assert "speculative_tokens 5 → 4? enter sets it, esc leaves it" in text_of(running)
        assert running.script.acted == []
        await go(pilot, "enter")
        assert "● speculative_tokens 5 → 4" in text_of(running)
        await go(pilot, *("minus", "enter"))
    (first, params), (_, again) = running.script.acted
    assert first == "dials.set"
    assert params.values == {"speculative_tokens": 4}
    assert params.expected == {"speculative_tokens": 5}
    assert params.reason
    assert len(params.idempotency_key) >= 16
    assert params.idempotency_key != again.idempotency_key


@pytest.mark.parametrize(("key", "value"), [("plus", 6), ("equals_sign", 6), ("right", 6), ("left", 4)])
async def test_there_is_a_key_for_a_step_on_every_keyboard(key, value):
    running = at_dials()
    async with running.run_test(size=SIZE) as pilot:
        await go(pilot, *ON_K, key)
        assert running.screen.desk.pending.value == value


async def test_escape_leaves_the_change_and_then_the_page():
    running = at_dials()
    async with running.run_test(size=SIZE) as pilot:
        await go(pilot, *ON_K, "minus", "t", "escape")
        assert isinstance(running.screen, DialsScreen)
        assert "enter sets it" not in text_of(running)
        await go(pilot, "escape")
        assert isinstance(running.screen, OverviewScreen)
    assert running.script.acted == []


async def test_a_value_is_typed_and_one_that_is_none_is_said_so():
    running = at_dials()
    async with running.run_test(size=SIZE) as pilot:
        await go(pilot, *ON_K, "enter", "9", "enter")
        label = str(running.screen.query_one("#entry_label", Static).content)
        assert label.startswith("speculative_tokens ▲ a whole number from 0 to 8:")
        assert running.screen.query_one("#entry_text", Input).value == "9"
        await go(pilot, "backspace", "2", "enter")
        assert "speculative_tokens 5 → 2? enter sets it" in text_of(running)
        assert running.focused is None
        await go(pilot, "t", "t", "enter")
    [(_, params)] = running.script.acted
    assert (params.values, params.for_s) == ({"speculative_tokens": 2}, 600.0)


async def test_escape_while_typing_changes_nothing_and_digits_open_no_page():
    running = at_dials()
    async with running.run_test(size=SIZE) as pilot:
        await go(pilot, *ON_K, "enter", "3", "7", "escape")
        assert isinstance(running.screen, DialsScreen)
        assert running.screen.desk.pending is None
        await go(pilot, "3")
        assert not isinstance(running.screen, DialsScreen)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (NoAnswer("dials.set", 20), "no answer to dials.set within 20 s; its outcome is unknown."),
        (ConnectionLost("the host closed it"), "The outcome is unknown; it is not sent again."),
        (
            CallFailed("dials.set", RpcError(ErrorCode.CONFLICT, "speculative_tokens is 4", {"remedy": "look again"})),
            "speculative_tokens is 4. Look again",
        ),
        (
            CallFailed("dials.set", RpcError(ErrorCode.INVALID_PARAMS, "9 is out of range", {"remedy": "at most 8"})),
            "9 is out of range. At most 8",
        ),
    ],
)
async def test_a_change_that_was_not_made_says_why_and_is_not_sent_again(error, said):
    running = at_dials(**{"dials.set": error})
    async with running.run_test(size=SIZE) as pilot:
        await go(pilot, *ON_K, "minus", "enter")
        assert said in " ".join(text_of(running).split())
        running.script.post(SnapshotArrived(sample_live.later(1), NOW))
        await pilot.pause()
        assert len(running.script.acted) == 1


async def test_while_the_answer_is_waited_for_no_other_change_is_begun():
    answer = asyncio.get_running_loop().create_future()
    running = at_dials(**{"dials.set": answer})
    async with running.run_test(size=SIZE) as pilot:
        await go(pilot, *ON_K, "minus", "enter")
        assert "waiting until the scheduler has applied it" in text_of(running)
        await go(pilot, "minus", "enter", "enter")
        assert len(running.script.acted) == 1
        answer.set_result(applied())
        await pilot.pause()
        assert "● speculative_tokens 5 → 4" in text_of(running)


async def test_who_has_gone_elsewhere_is_told_in_the_footer():
    answer = asyncio.get_running_loop().create_future()
    running = at_dials(**{"dials.set": answer})
    async with running.run_test(size=SIZE) as pilot:
        await go(pilot, *ON_K, "minus", "enter", "1")
        answer.set_result(applied())
        await pilot.pause()
        assert "dial: speculative_tokens 5 → 4" in footer_of(running)


async def test_slower_after_a_change_is_said_and_u_leads_back():
    running = at_dials()
    async with running.run_test(size=SIZE) as pilot:
        await go(pilot, *ON_K)
        for second in range(1, 19):
            snapshot = sample_live.later(
                second, k=3 if second > 5 else 5, moved_at=5.5, tokens_per_s=1_650.0 if second > 15 else 2_140.0
            )
            running.now += 1
            running.script.post(SnapshotArrived(snapshot, running.now))
        await pilot.pause()
        assert "22.9 % SLOWER" in " ".join(text_of(running).split())
        assert "u revert" in footer_of(running)
        await go(pilot, "u")
        assert "speculative_tokens 3 → 5? enter sets it" in text_of(running)
        await go(pilot, "enter")
    [(_, params)] = running.script.acted
    assert (params.values, params.expected) == ({"speculative_tokens": 5}, {"speculative_tokens": 3})
    assert params.reason == "reverted: out 2.14k /s before, 1.65k /s after"


async def test_the_recommended_k_is_proposed_where_it_is_agreed_to():
    running = at_dials()
    async with running.run_test(size=SIZE) as pilot:
        await go(pilot, "4")
        assert "a apply" in footer_of(running)
        await go(pilot, "a")
        assert isinstance(running.screen, DialsScreen)
        assert "speculative_tokens 5 → 3? enter sets it" in text_of(running)
        assert "recommended: K 3 gives 1.12 times" in text_of(running)
        assert running.script.acted == []
        await go(pilot, "enter")
    [(_, params)] = running.script.acted
    assert (params.values, params.for_s) == ({"speculative_tokens": 3}, None)
    assert params.expected == {"speculative_tokens": 5}
    assert params.reason.startswith("recommended: K 3 gives")


async def test_a_k_to_be_measured_is_proposed_for_as_long_as_it_takes():
    running = at_dials(sample_live.live(speculation=sample_live.speculation(recommendation=sample_live.trial())))
    async with running.run_test(size=SIZE) as pilot:
        await go(pilot, "4")
        assert "a try" in footer_of(running)
        await go(pilot, "a")
        assert "speculative_tokens 5 → 2 for 30 s? enter sets it" in text_of(running)
        await go(pilot, "enter")
    [(_, params)] = running.script.acted
    assert (params.values, params.for_s, params.reason) == ({"speculative_tokens": 2}, 30.0, "to measure K 2")


async def test_a_viewer_can_apply_nothing():
    running = at_dials(role=Role.VIEWER)
    async with running.run_test(size=SIZE) as pilot:
        await go(pilot, "4")
        assert "a apply" not in footer_of(running)
        await go(pilot, "a")
        assert isinstance(running.screen, SpeculationScreen)
        assert footer_of(running) == "apply: needs the operator role."
        await go(pilot, *ON_K, "minus")
        assert running.screen.desk.pending is None


async def test_d_leads_from_the_recommendation_to_the_dials():
    running = at_dials()
    async with running.run_test(size=SIZE) as pilot:
        await go(pilot, "4", "d")
        assert isinstance(running.screen, DialsScreen)
        assert "max_active_seqs" in text_of(running)


async def test_an_engine_without_dials_takes_no_key_for_them():
    running = at_dials(sample_live.no_scheduler())
    async with running.run_test(size=SIZE) as pilot:
        await go(pilot, "8", "minus")
        assert "– vLLM 0.40.1 is newer" in text_of(running)
        assert "- does nothing here" in footer_of(running)


@pytest.mark.parametrize("size", [(1, 1), (10, 3), (60, 12), (240, 60)])
async def test_no_size_of_terminal_breaks_the_screens(size):
    running = at_dials()
    async with running.run_test(size=size) as pilot:
        for keys in (["4"], ["a"], ["enter"], ["minus"], ["escape"], ["enter"], ["1"], ["enter"], ["question_mark"]):
            await go(pilot, *keys)
        assert running.is_running
