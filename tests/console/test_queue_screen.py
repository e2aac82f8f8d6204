"""The queue screen under a pilot: polling, typing a filter, ending one request."""

from __future__ import annotations

import asyncio

import pytest
from textual.widgets import Button, Input, Static

from console.call_errors import CallFailed, ConnectionLost, NoAnswer
from console.model import SnapshotArrived
from console.tui.screens.confirm import ConfirmScreen
from console.tui.screens.overview import OverviewScreen
from console.tui.screens.queue import QueueScreen
from engine_host.protocol.envelope import ErrorCode, RpcError
from engine_host.protocol.methods import RequestOrder, Role
from tests.console import sample_live
from tests.console.scripted_source import app
from tests.console.test_profiles_screen import go
from tests.console.test_tui import footer_of, text_of

SIZE = (80, 24)


def lists_asked(running):
    return [params for method, params in running.script.read if method == "requests.list"]


async def tick(running, pilot, seconds=1.0):
    running.now += seconds
    running.script.post(SnapshotArrived(sample_live.live(), running.now))
    await pilot.pause()


async def test_the_list_is_asked_for_once_a_second_while_it_is_shown_only():
    running = app(sample_live.live())
    async with running.run_test(size=SIZE) as pilot:
        await tick(running, pilot)
        assert lists_asked(running) == []
        await go(pilot, "3")
        assert "1 to 17 of 49" in text_of(running)
        await tick(running, pilot, 0.5)
        assert len(lists_asked(running)) == 1
        await tick(running, pilot, 0.5)
        assert len(lists_asked(running)) == 2
        await go(pilot, "1")
        await tick(running, pilot)
        assert len(lists_asked(running)) == 2


async def test_a_slow_list_is_not_asked_for_twice():
    running = app(sample_live.live())
    running.script.answers["requests.list"] = answer = asyncio.get_running_loop().create_future()
    async with running.run_test(size=SIZE) as pilot:
        await go(pilot, "3")
        for _ in range(5):
            await tick(running, pilot)
        assert len(lists_asked(running)) == 1
        answer.set_result(sample_live.requests())
        await pilot.pause()
        assert "1 to 17 of 49" in text_of(running)


async def test_a_list_that_does_not_come_says_why():
    running = app(sample_live.live())
    running.script.answers["requests.list"] = NoAnswer("requests.list", 10)
    async with running.run_test(size=SIZE) as pilot:
        await go(pilot, "3")
        assert "× requests: no answer to requests.list within 10 s" in text_of(running)


async def test_another_order_is_shown_at_once_and_asked_for():
    running = app(sample_live.live())
    async with running.run_test(size=SIZE) as pilot:
        await go(pilot, "3", "s")
        assert "↓waited" in text_of(running)
        assert [params.order for params in lists_asked(running)] == [RequestOrder.AGE, RequestOrder.WAITED]


async def test_a_frozen_list_can_be_sorted_and_is_not_asked_for():
    running = app(sample_live.live())
    async with running.run_test(size=SIZE) as pilot:
        await go(pilot, "3", "p", "s")
        await tick(running, pilot)
        assert "↓waited" in text_of(running)
        assert len(lists_asked(running)) == 1
        assert "abort" not in footer_of(running)
        await go(pilot, "A")
        assert "abort: off while the page is frozen (p), as its numbers are old." in footer_of(running)


async def test_typing_filters_as_one_types_and_letters_trigger_nothing():
    running = app(sample_live.live())
    async with running.run_test(size=SIZE) as pilot:
        await go(pilot, "3", "slash", *"7q")
        assert running.screen.query_one("#entry_text", Input).value == "7q"
        assert "none matches" in text_of(running)
        await go(pilot, "backspace", *"8dde")
        assert 'only "78dde" in the id  of 49' in text_of(running)
        assert isinstance(running.screen, QueueScreen)
        await go(pilot, "enter")
        assert "esc all" in footer_of(running)
        assert running.screen.desk.match == "78dde"
        assert running.screen.query_one("#footer").display
        await go(pilot, "escape")
        assert running.screen.desk.match == ""
        await go(pilot, "escape")
        assert isinstance(running.screen, OverviewScreen)


async def test_escape_while_typing_drops_the_filter():
    running = app(sample_live.live())
    async with running.run_test(size=SIZE) as pilot:
        await go(pilot, "3", "slash", *"78", "escape")
        assert running.screen.desk.match == ""
        assert "1 to 17 of 49" in text_of(running)
        assert running.focused is None


async def test_the_filter_goes_on_while_one_types_and_new_lists_come():
    running = app(sample_live.live())
    async with running.run_test(size=SIZE) as pilot:
        await go(pilot, "3", "slash", *"78dde")
        await tick(running, pilot)
        assert running.screen.query_one("#entry_text", Input).value == "78dde"
        assert len(lists_asked(running)) == 2
        await go(pilot, "6")
        assert running.screen.desk.match == "78dde6"


async def test_enter_shows_one_request_and_escape_the_list_again():
    running = app(sample_live.live())
    async with running.run_test(size=SIZE) as pilot:
        await go(pilot, "3", "down", "down", "enter")
        assert "chatcmpl-3c6ef3620002" in text_of(running)
        assert "of which it waited" in text_of(running)
        await go(pilot, "escape")
        assert "▸ …6ef3620002" in text_of(running)


def question_of(running) -> str:
    return str(running.screen.query_one("#consequence", Static).content)


@pytest.mark.parametrize("key", ["A", "x"])
async def test_one_request_is_ended_by_its_id_after_a_question_with_its_numbers(key):
    running = app(sample_live.live())
    async with running.run_test(size=SIZE) as pilot:
        await go(pilot, "3", "down", key)
        assert isinstance(running.screen, ConfirmScreen)
        assert running.focused.id == "cancel"
        said = "It is running, 1m40s old: 3,100 tokens of at most 8,192 generated, 73 KV blocks held."
        assert said in question_of(running)
        await go(pilot, "right", "enter")
        assert "abort: done" in footer_of(running)
    [(method, params)] = running.script.acted
    assert method == "requests.abort"
    assert params.id == sample_live.request_id(1)
    assert params.reason
    assert len(params.idempotency_key) >= 16


async def test_enter_on_the_fresh_question_ends_nothing():
    running = app(sample_live.live())
    async with running.run_test(size=SIZE) as pilot:
        await go(pilot, "3", "A", "enter")
        assert isinstance(running.screen, QueueScreen)
    assert running.script.acted == []


async def test_the_question_stays_live_and_one_that_ends_meanwhile_cannot_be_ended():
    running = app(sample_live.live())
    async with running.run_test(size=SIZE) as pilot:
        await go(pilot, "3", "A", "right")
        older = sample_live.request(0, generated_tokens=6_300)
        running.script.answers["requests.list"] = sample_live.requests(requests=[older], total=1)
        await tick(running, pilot)
        await tick(running, pilot)
        assert "6,300 tokens of at most 8,192 generated" in question_of(running)
        assert not running.screen.query_one("#go", Button).disabled
        running.script.answers["requests.list"] = sample_live.requests(0, 0)
        await tick(running, pilot)
        await tick(running, pilot)
        assert "It has ended meanwhile" in question_of(running)
        assert running.screen.query_one("#go", Button).disabled
        assert running.focused.id == "cancel"
    assert running.script.acted == []


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (NoAnswer("requests.abort", 10), "its outcome is unknown."),
        (ConnectionLost("the host closed it"), "The outcome is unknown; it is not sent again."),
        (
            CallFailed("requests.abort", RpcError(ErrorCode.FAILED, "no unfinished request", {"remedy": "look"})),
            "Look.",
        ),
    ],
)
async def test_what_became_of_it_is_said_and_it_is_not_sent_again(error, said):
    running = app(sample_live.live())
    running.script.answers["requests.abort"] = error
    async with running.run_test(size=SIZE) as pilot:
        await go(pilot, "3", "A", "right", "enter")
        assert said in " ".join(f"{text_of(running)} {footer_of(running)}".split())
        assert len(running.script.acted) == 1


@pytest.mark.parametrize("role", [Role.VIEWER, Role.OPERATOR])
async def test_who_may_not_is_not_offered_to_end_one(role):
    running = app(sample_live.live(), role)
    async with running.run_test(size=SIZE) as pilot:
        await go(pilot, "3")
        assert "abort" not in footer_of(running)
        await go(pilot, "A")
        assert isinstance(running.screen, QueueScreen)
        assert footer_of(running) == "abort: needs the admin role."


async def test_one_that_has_ended_is_not_offered_to_be_ended():
    running = app(sample_live.live())
    async with running.run_test(size=SIZE) as pilot:
        await go(pilot, "3")
        rest = sample_live.requests().requests[1:]
        running.script.answers["requests.list"] = sample_live.requests(requests=rest, total=48)
        await tick(running, pilot)
        assert "▲ ENDED" in text_of(running)
        await go(pilot, "A")
        assert isinstance(running.screen, QueueScreen)
        assert "A does nothing here" in footer_of(running)


@pytest.mark.parametrize("size", [(1, 1), (10, 3), (60, 12), (240, 60)])
async def test_no_size_of_terminal_breaks_the_screen(size):
    running = app(sample_live.live())
    async with running.run_test(size=size) as pilot:
        for keys in (["3"], ["slash"], ["0"], ["enter"], ["enter"], ["escape"], ["A"], ["escape"], ["question_mark"]):
            await go(pilot, *keys)
        assert running.is_running
