"""The profiles screen under a pilot: the way from the list to a switch, and everything that can come in between."""

from __future__ import annotations

import asyncio

import pytest
from textual.widgets import Button, Static

from console.call_errors import CallFailed, ConnectionLost, NoAnswer
from console.model import Connected, Disconnected, SnapshotArrived
from console.profiles_desk import View
from console.tui.screens.confirm import ConfirmScreen
from console.tui.screens.overview import OverviewScreen
from console.tui.screens.profiles import ProfilesScreen
from console.tui.widgets.board import Board
from engine_host.protocol.envelope import ErrorCode, RpcError
from engine_host.protocol.methods import Role
from engine_host.protocol.profiles import Tier
from engine_host.protocol.snapshot import Queue
from engine_host.protocol.switching import SwitchStatus
from tests.console import sample, sample_switch
from tests.console.scripted_source import NOW, app
from tests.console.test_tui import footer_of, text_of

SIZE = (80, 24)


async def go(pilot, *keys: str) -> None:
    """Press and let what was asked for arrive."""
    for key in keys:
        await pilot.press(key)
        await pilot.pause()


def at_forecast(**answers):
    running = app(sample.serving())
    running.script.answers |= {"switch": sample_switch.result(), **answers}
    return running


DRY_RUN = ("5", "end", "enter", "enter")


async def test_enter_leads_from_the_list_over_diff_and_dry_run_to_the_question_and_escape_back():
    running = at_forecast()
    async with running.run_test(size=SIZE) as pilot:
        await go(pilot, "5")
        assert "enter compare" in footer_of(running)
        await go(pilot, "end", "enter")
        assert "throughput › compared with latency" in text_of(running)
        assert "enter dry run" in footer_of(running)
        await go(pilot, "enter")
        assert "It can be done" in text_of(running)
        assert "enter switch" in footer_of(running)
        await go(pilot, "enter")
        assert isinstance(running.screen, ConfirmScreen)
        await go(pilot, "escape", "escape")
        assert running.screen.desk.view is View.DIFF
        await go(pilot, "escape")
        assert running.screen.desk.view is View.LIST
        await go(pilot, "escape")
        assert isinstance(running.screen, OverviewScreen)
    assert running.script.acted == []


async def test_the_question_focuses_cancel_and_enter_there_switches_nothing():
    running = at_forecast()
    async with running.run_test(size=SIZE) as pilot:
        await go(pilot, *DRY_RUN, "enter")
        assert running.focused.id == "cancel"
        await go(pilot, "enter")
        assert isinstance(running.screen, ProfilesScreen)
    assert running.script.acted == []


async def test_the_numbers_of_the_question_stay_live():
    running = at_forecast()
    async with running.run_test(size=SIZE) as pilot:
        await go(pilot, *DRY_RUN, "enter")
        running.now += 8
        running.script.post(SnapshotArrived(sample.serving(queue=Queue(running=5, waiting=0)), running.now))
        await pilot.pause()
        said = str(running.screen.query_one("#consequence", Static).content)
        assert "In flight now: 5 running, 0 waiting." in said
        assert "By the dry run of 8 s ago, 45 are carried over" in said


async def test_who_agrees_switches_once_by_the_state_of_the_dry_run_and_sees_the_result():
    running = at_forecast()
    async with running.run_test(size=SIZE) as pilot:
        await go(pilot, *DRY_RUN, "enter")
        running.script.post(SnapshotArrived(sample.serving(state_version=9), running.now))
        await go(pilot, "right", "enter")
        assert "● SWITCHED  latency → throughput" in text_of(running)
        assert "45 carried over, 3 drained" in text_of(running)
    [(method, params)] = running.script.acted
    assert method == "switch"
    assert (params.profile, params.tier, params.expected_state_version) == ("throughput", None, 7)
    assert len(params.idempotency_key) >= 16


async def test_the_progress_is_shown_while_the_answer_is_waited_for_and_then_the_result():
    answer = asyncio.get_running_loop().create_future()
    running = at_forecast(switch=answer)
    async with running.run_test(size=SIZE) as pilot:
        await go(pilot, *DRY_RUN, "enter", "right", "enter")
        assert "waiting for the host to begin" in text_of(running)
        running.script.post(SnapshotArrived(sample_switch.switching(), NOW))
        assert "37 s of 1m24s" in text_of(running)
        assert "C cancel the switch" in footer_of(running)
        assert "restart engine" not in footer_of(running)
        running.script.post(SnapshotArrived(sample.serving(), NOW))
        answer.set_result(sample_switch.rolled_back())
        await pilot.pause()
        assert "▲ ROLLED BACK" in text_of(running)
        assert "(EngineCore pid=4300) ERROR ValueError" in text_of(running)


async def test_the_result_is_said_in_the_footer_to_who_has_gone_elsewhere():
    answer = asyncio.get_running_loop().create_future()
    running = at_forecast(switch=answer)
    async with running.run_test(size=SIZE) as pilot:
        await go(pilot, *DRY_RUN, "enter", "right", "enter", "1")
        answer.set_result(sample_switch.result())
        await pilot.pause()
        assert "switch: it serves; no request failed" in footer_of(running)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (NoAnswer("switch", 900), "no answer to switch within 900 s; its outcome is unknown."),
        (ConnectionLost("the host closed it"), "The outcome is unknown; it is not sent again."),
        (CallFailed("switch", RpcError(ErrorCode.CONFLICT, "maria is switching", {"remedy": "wait"})), "maria is sw"),
    ],
)
async def test_a_switch_that_got_no_result_is_said_in_words_and_not_tried_again(error, said):
    running = at_forecast(switch=error)
    async with running.run_test(size=SIZE) as pilot:
        await go(pilot, *DRY_RUN, "enter", "right", "enter")
        assert said in " ".join(text_of(running).split())
        assert len(running.script.acted) == 1
        # The refusal stays in sight while the switch that was first takes the page.
        running.script.post(SnapshotArrived(sample_switch.switching(), NOW))
        assert said in " ".join(text_of(running).split())
        assert "37 s of 1m24s" in text_of(running)


def question_of(running) -> str:
    return str(running.screen.query_one("#consequence", Static).content)


def can_go(running) -> bool:
    return not running.screen.query_one("#go", Button).disabled


async def test_the_tier_and_the_drain_time_of_the_question_are_those_of_the_switch():
    running = at_forecast(**{"switch.forecast": sample_switch.overlapping_forecast()})
    async with running.run_test(size=SIZE) as pilot:
        await go(pilot, *DRY_RUN, "enter")
        assert "by overlap: streams pause (about 400 ms)" in question_of(running)
        running.script.answers["switch.forecast"] = sample_switch.forecast()
        await go(pilot, "t")
        assert "by reload: streams pause (about 1m28s)" in question_of(running)
        assert "they get latency's drain time" in question_of(running)
        await go(pilot, "d", "4", "5")
        assert "they get 45 s to finish" in question_of(running)
        await go(pilot, "enter")
        assert running.focused.id == "go"
        await go(pilot, "enter")
    [(method, params)] = running.script.acted
    assert (method, params.tier, params.drain_timeout_s) == ("switch", Tier.RELOAD, 45.0)
    asked = [params.tier for method, params in running.script.read if method == "switch.forecast"]
    assert asked == [None, Tier.RELOAD]


async def test_left_alone_both_are_the_hosts_own_choice():
    running = at_forecast()
    async with running.run_test(size=SIZE) as pilot:
        await go(pilot, *DRY_RUN, "enter", "right", "enter")
    [(_, params)] = running.script.acted
    assert (params.tier, params.drain_timeout_s) == (None, None)


async def test_the_tiers_go_round_and_one_is_not_asked_about_twice():
    running = at_forecast(**{"switch.forecast": sample_switch.overlapping_forecast()})
    async with running.run_test(size=SIZE) as pilot:
        await go(pilot, *DRY_RUN, "enter", "t", "t", "t", "t")
        assert "overlap, as the host chooses" in str(running.screen.query_one("#tier", Button).label)
    assert [method for method, _ in running.script.read].count("switch.forecast") == 2


async def test_until_the_host_has_told_of_the_other_tier_nobody_can_agree_to_it():
    running = at_forecast(**{"switch.forecast": sample_switch.overlapping_forecast()})
    async with running.run_test(size=SIZE) as pilot:
        await go(pilot, *DRY_RUN, "enter")
        answer = asyncio.get_running_loop().create_future()
        running.script.answers["switch.forecast"] = answer
        await go(pilot, "right")
        assert can_go(running)
        await go(pilot, "t")
        assert "Asking the host what a switch by reload would do" in question_of(running)
        assert not can_go(running)
        assert running.focused.id == "cancel"
        answer.set_result(sample_switch.refused())
        await pilot.pause()
        assert "The check refuses it: the engine needs 132 GiB" in question_of(running)
        assert not can_go(running)
        await go(pilot, "t")
        assert can_go(running)
    assert running.script.acted == []


async def test_a_tier_that_the_host_refuses_is_told_with_its_reason_and_asked_about_again():
    running = at_forecast(**{"switch.forecast": sample_switch.overlapping_forecast()})
    async with running.run_test(size=SIZE) as pilot:
        await go(pilot, *DRY_RUN, "enter")
        told = {"remedy": "Leave out --tier."}
        running.script.answers["switch.forecast"] = CallFailed(
            "switch.forecast", RpcError(ErrorCode.INVALID_PARAMS, "the tier reload cannot carry this", told)
        )
        await go(pilot, "t")
        assert "the tier reload cannot carry this" in question_of(running)
        assert not can_go(running)
        running.script.answers["switch.forecast"] = sample_switch.forecast()
        await go(pilot, "t", "t")
        assert can_go(running)


@pytest.mark.parametrize("typed", ["x", "9" * 9, "-1", "nan"])
async def test_a_drain_time_that_is_none_is_said_so_and_not_agreed_to(typed):
    running = at_forecast()
    async with running.run_test(size=SIZE) as pilot:
        await go(pilot, *DRY_RUN, "enter", "d", *(key if key != "-" else "minus" for key in typed))
        assert "not a number from 0 to 86,400" in str(running.screen.query_one("#drain_hint", Static).content)
        assert not can_go(running)
        await go(pilot, "ctrl+u", "6")
        assert "they get 6 s" in question_of(running)
        assert can_go(running)


@pytest.mark.parametrize("size", [(80, 24), (66, 22), (60, 18)])
async def test_the_question_fits_with_names_of_any_length(size):
    long = sample_switch.forecast(from_profile="a" * 200, to_profile="b" * 200)
    running = at_forecast(**{"switch.forecast": long})
    async with running.run_test(size=size) as pilot:
        await go(pilot, *DRY_RUN, "enter")
        assert "aaa… → bbb" in question_of(running)
        assert can_go(running)
        assert not running.screen.has_class("-unreadable")


async def test_a_question_that_does_not_fit_can_only_be_left():
    running = at_forecast()
    async with running.run_test(size=(40, 12)) as pilot:
        await go(pilot, *DRY_RUN, "enter", "t", "d", "right", "enter")
        assert running.screen.has_class("-unreadable")
        assert not can_go(running)
    assert running.script.acted == []


async def test_who_was_first_is_said_in_the_question_which_can_then_not_be_agreed_to():
    running = at_forecast()
    async with running.run_test(size=SIZE) as pilot:
        await go(pilot, *DRY_RUN, "enter", "right")
        running.script.post(SnapshotArrived(sample_switch.switching(), NOW))
        await pilot.pause()
        said = "Not now: maria is switching latency → throughput since 07:32:38 (42 s ago)"
        assert said in question_of(running)
        assert not can_go(running)
        await go(pilot, "escape")
        assert "by maria since 07:32:38" in text_of(running)


async def test_a_cancelled_switch_says_who_cancelled_what_and_what_runs():
    answer = asyncio.get_running_loop().create_future()
    running = at_forecast(switch=answer)
    async with running.run_test(size=SIZE) as pilot:
        await go(pilot, *DRY_RUN, "enter", "right", "enter")
        running.script.post(SnapshotArrived(sample_switch.switching(), NOW))
        await go(pilot, "C", "right", "enter")
        answer.set_result(sample_switch.cancelled())
        running.script.post(SnapshotArrived(sample.serving(), NOW))
        await pilot.pause()
        assert "▲ CANCELLED  latency → throughput" in text_of(running)
        assert "latency goes on" in text_of(running)
    assert [method for method, _ in running.script.acted] == ["switch", "switch.cancel"]


async def test_a_host_that_goes_away_during_a_switch_leaves_what_was_seen_and_says_so():
    answer = asyncio.get_running_loop().create_future()
    running = at_forecast(switch=answer)
    async with running.run_test(size=SIZE) as pilot:
        await go(pilot, *DRY_RUN, "enter", "right", "enter")
        running.script.post(SnapshotArrived(sample_switch.switching(), NOW))
        running.script.post(Disconnected("the host closed it", NOW, NOW + 3))
        answer.set_exception(ConnectionLost("the host closed it"))
        await pilot.pause()
        shown = " ".join(text_of(running).split())
        assert "NO CONNECTION" in shown
        assert "The outcome is unknown; it is not sent again." in shown
        assert "37 s of 1m24s" in shown
        assert "C cancel" not in footer_of(running)
        # The same host again, the switch over: what became of it is asked for, not guessed.
        running.script.answers["switch.status"] = SwitchStatus(last=sample_switch.result())
        running.script.post(Connected(sample.hello(), NOW + 4))
        await pilot.pause()
        running.script.post(SnapshotArrived(sample.serving(), NOW + 4))
        await pilot.pause()
        assert "● SWITCHED" in text_of(running)
    assert len(running.script.acted) == 1


async def test_a_switch_of_somebody_else_is_followed_to_its_result():
    running = app(sample.serving())
    async with running.run_test(size=SIZE) as pilot:
        await go(pilot, "5")
        running.script.post(SnapshotArrived(sample_switch.switching(), NOW))
        assert "by maria since" in text_of(running)
        running.script.answers["switch.status"] = SwitchStatus(last=sample_switch.result())
        running.script.post(SnapshotArrived(sample.serving(), NOW))
        await pilot.pause()
        assert "● SWITCHED" in text_of(running)


async def test_while_a_switch_is_under_way_no_other_one_can_be_asked_for():
    running = at_forecast()
    async with running.run_test(size=SIZE) as pilot:
        await go(pilot, *DRY_RUN)
        running.script.post(SnapshotArrived(sample_switch.switching(), NOW))
        await go(pilot, "escape", "d")
        assert "It can be done" in text_of(running)
        await go(pilot, "enter")
        assert isinstance(running.screen, ProfilesScreen)
        assert "enter switch" not in footer_of(running)


async def test_cancelling_asks_first_with_the_focus_on_going_on():
    running = app(sample_switch.switching())
    async with running.run_test(size=SIZE) as pilot:
        await go(pilot, "5", "C")
        assert running.focused.id == "cancel"
        assert str(running.focused.label) == "Let it go on"
        said = str(running.screen.query_one("#consequence", Static).content)
        assert "maria is switching latency → throughput" in said
        await go(pilot, "enter", "C", "right", "enter")
        assert "cancel: done" in footer_of(running)
    assert [method for method, _ in running.script.acted] == ["switch.cancel"]


async def test_a_viewer_may_look_and_dry_run_but_the_keys_of_change_are_dead():
    running = app(sample.serving(), Role.VIEWER)
    async with running.run_test(size=SIZE) as pilot:
        await go(pilot, *DRY_RUN)
        assert "It can be done" in text_of(running)
        assert "Read-only" in text_of(running)
        await go(pilot, "enter")
        assert isinstance(running.screen, ProfilesScreen)
        running.script.post(SnapshotArrived(sample_switch.switching(), NOW))
        assert "cancel" not in footer_of(running)
        await go(pilot, "C")
        assert isinstance(running.screen, ProfilesScreen)
        assert footer_of(running) == "cancel the switch: needs the admin role."
    assert running.script.acted == []


async def test_without_a_connection_the_list_stays_and_nothing_is_asked():
    running = app(sample.serving())
    async with running.run_test(size=SIZE) as pilot:
        await go(pilot, "5")
        running.script.post(Disconnected("gone", NOW, NOW + 3))
        read = len(running.script.read)
        await go(pilot, "enter", "d", "r")
        assert "throughput" in text_of(running)
        assert "NO CONNECTION" in text_of(running)
        assert len(running.script.read) == read
        running.script.post(Connected(sample.hello(), NOW + 4))
        await pilot.pause()
        assert [method for method, _ in running.script.read[read:]] == ["profiles.list", "switch.status"]


async def test_a_host_that_knows_no_profiles_is_said_so():
    running = app(sample.serving())
    running.script.answers["profiles.list"] = CallFailed(
        "profiles.list", RpcError(ErrorCode.UNKNOWN_METHOD, "no such method", {"remedy": "use a newer host"})
    )
    async with running.run_test(size=SIZE) as pilot:
        await go(pilot, "5")
        assert "× profiles: no such method. Use a newer host." in text_of(running)


async def test_an_answer_that_comes_after_one_has_left_its_view_is_dropped():
    answer = asyncio.get_running_loop().create_future()
    running = at_forecast(**{"switch.forecast": answer})
    async with running.run_test(size=SIZE) as pilot:
        await go(pilot, *DRY_RUN)
        assert "touches nothing" in text_of(running)
        await go(pilot, "escape")
        answer.set_result(sample_switch.forecast())
        await pilot.pause()
        assert running.screen.desk.told is None
        assert "compared with" in text_of(running)


async def test_a_refused_file_shows_its_reason_and_is_not_asked_about():
    running = app(sample.serving())
    async with running.run_test(size=SIZE) as pilot:
        await go(pilot, "5", "end", "up", "enter")
        assert "× REFUSED: /etc/vllm-console/profiles/old-cluster.toml" in text_of(running)
        await go(pilot, "enter", "escape", "d")
        assert "× REFUSED" in text_of(running)
    assert {method for method, _ in running.script.read} == {"profiles.list", "switch.status"}


@pytest.mark.parametrize(("keys", "chosen"), [(["j", "j"], "throughput"), (["k"], "kv-4bit"), (["g"], "demo")])
async def test_the_keys_of_vi_move_too(keys, chosen):
    running = app(sample.serving())
    async with running.run_test(size=SIZE) as pilot:
        await go(pilot, "5", *keys, *(["j"] if chosen == "throughput" else []))
        assert running.screen.desk.chosen == chosen


async def test_the_list_is_read_again_on_coming_back_to_it(until):
    running = app(sample.serving())

    def times_read() -> int:
        running.draw()  # as every second
        return [method for method, _ in running.script.read].count("profiles.list")

    async with running.run_test(size=SIZE) as pilot:
        await go(pilot, "5")
        await until(times_read)
        await go(pilot, "1")
        await until(lambda: isinstance(running.screen, OverviewScreen))
        before = times_read()
        await go(pilot, "5")
        await until(lambda: times_read() > before)


async def test_an_unchanged_page_repaints_nothing(monkeypatch):
    running = app(sample_switch.switching())
    async with running.run_test(size=SIZE) as pilot:
        await go(pilot, "5")
        painted = []
        monkeypatch.setattr(Board, "refresh", lambda self, *regions, **_: painted.extend(regions))
        running.draw()
        assert painted == []
        running.script.post(SnapshotArrived(sample_switch.switching(sample_switch.progress(43.0)), NOW))
        assert 0 < len(painted) <= 4
        assert all(region.height == 1 for region in painted)
