"""The app under a pilot: keys, dialogs, what is offered to whom."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from textual.widgets import Button, Input, Static

from console.call_errors import CallFailed, ConnectionLost, NoAnswer
from console.glossary import words
from console.lines import plain_text
from console.model import Disconnected, EventArrived, SnapshotArrived
from console.tui.keys import ACTIONS
from console.tui.pages import PAGES
from console.tui.screens.confirm import ConfirmScreen
from console.tui.screens.events import EventsScreen
from console.tui.screens.help import HelpScreen, help_page
from console.tui.screens.overview import OverviewScreen
from console.tui.widgets.board import Board, changed_run
from engine_host.protocol.envelope import RpcError
from engine_host.protocol.events import Event
from engine_host.protocol.methods import Role
from engine_host.protocol.snapshot import Queue
from tests.console import sample
from tests.console.scripted_source import NOW, ScriptedApp, app
from tests.console.test_overview import state_of


def text_of(running: ScriptedApp, board: str = "#board") -> str:
    shown = running.screen.query_one(board, Board)
    return "\n".join(plain_text(row).rstrip() for row in shown.lines)


def footer_of(running: ScriptedApp) -> str:
    return text_of(running, "#footer")


async def test_the_first_page_is_the_overview_with_data():
    async with app(sample.serving()).run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        assert isinstance(pilot.app.screen, OverviewScreen)
        assert "68.2 %" in text_of(pilot.app)


@pytest.mark.parametrize(("stops", "said"), [(False, "the host runs on"), (True, "its host is stopped too")])
async def test_what_quitting_does_to_the_host_is_said_as_it_is(stops, said):
    running = app(sample.serving())
    running.state = replace(running.state, quit_stops_host=stops)
    async with running.run_test(size=(80, 24)) as pilot:
        await pilot.press("ctrl+c")
        assert f"Press q to leave the console; {said}." in footer_of(running)
        await pilot.press("question_mark")
        await pilot.pause()
        assert f"leave the console; {said}" in text_of(running, "#help")


async def test_a_new_snapshot_is_drawn_when_it_comes():
    async with app(sample.serving()).run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        pilot.app.script.post(SnapshotArrived(sample.serving(queue=Queue(running=5, waiting=0)), NOW))
        assert "running     5" in text_of(pilot.app)


async def test_freeze_holds_the_page_and_lets_it_go_on():
    async with app(sample.serving()).run_test(size=(80, 24)) as pilot:
        await pilot.press("p")
        pilot.app.script.post(SnapshotArrived(sample.serving(queue=Queue(running=5, waiting=0)), NOW))
        assert "FROZEN" in text_of(pilot.app)
        assert "running    37" in text_of(pilot.app)
        assert "p go on" in footer_of(pilot.app)
        await pilot.press("p")
        assert "FROZEN" not in text_of(pilot.app)
        assert "running     5" in text_of(pilot.app)


async def test_screens_are_reached_by_number_and_left_with_escape():
    async with app(sample.serving()).run_test(size=(80, 24)) as pilot:
        await pilot.press("7")
        assert isinstance(pilot.app.screen, EventsScreen)
        await pilot.pause()
        assert "restart refused" in text_of(pilot.app)
        await pilot.press("escape")
        assert isinstance(pilot.app.screen, OverviewScreen)


@pytest.mark.parametrize("name", sorted(PAGES))
def test_every_page_is_there_and_has_a_key(name):
    page = PAGES[name]()
    assert name == page.NAME
    assert any(action.name == f"screen('{name}')" for action in ACTIONS)


async def test_only_screens_that_exist_are_offered():
    async with app(sample.serving()).run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        assert "5 profiles" in footer_of(pilot.app)
        assert "6 throttle" in footer_of(pilot.app)
        assert "7 events" in footer_of(pilot.app)
        assert "1 overview" not in footer_of(pilot.app)
        for key in "09d":
            await pilot.press(key)
            assert isinstance(pilot.app.screen, OverviewScreen)


@pytest.mark.parametrize("key", ["escape", "q", "question_mark", "enter"])
async def test_help_lists_every_action_and_is_left_without_quitting(key):
    async with app(sample.serving()).run_test(size=(80, 30)) as pilot:
        await pilot.press("question_mark")
        assert isinstance(pilot.app.screen, HelpScreen)
        await pilot.pause()
        page = text_of(pilot.app, "#help")
        assert all(a.help in page for a in ACTIONS if not a.screens)
        await pilot.press(key)
        assert isinstance(pilot.app.screen, OverviewScreen)
        assert pilot.app.is_running


@pytest.mark.parametrize("role", [Role.ADMIN, Role.VIEWER])
async def test_help_can_be_read_to_its_end_on_a_low_terminal_and_says_which_figure_is_meant(role):
    running = app(sample.serving(), role)
    async with running.run_test(size=(80, 20)) as pilot:
        await pilot.press("question_mark")
        await pilot.pause()
        first = text_of(running, "#help")
        assert "more rows" in first
        await pilot.press("down")
        assert text_of(running, "#help").splitlines()[0] == first.splitlines()[1]
        await pilot.press("end")
        page = text_of(running, "#help")
        assert "position  kept there, of all drafts that long" in page
        assert "between tokens  of a stream, per engine step: several tokens with drafts" in page
        assert "tokens fit  as vLLM counts: with the one block that it keeps for itself" in page
        assert "unknown, never 0" in page  # the last row
        assert "more rows" not in page
        assert "…" not in first + page
        await pilot.press("home")
        assert text_of(running, "#help") == first


@pytest.mark.parametrize(
    ("page", "shown"),
    [
        ("overview", ["wasted", "preempted", "K", "cap", "2 set"]),
        ("events", ["number", "·  ▲  ×", "(maria)", "missed"]),
        ("speculation", ["K"]),
        ("throttle", ["too long"]),
        ("profiles", ["preflight", "prepare", "hold", "probe", "warm", "release"]),
    ],
)
def test_help_explains_what_is_on_its_page(page, shown):
    explained = ", ".join(word for word, _ in words(page)).split(", ")
    assert [word for word in shown if word not in explained] == []


@pytest.mark.parametrize(
    "place", sorted({place for action in ACTIONS for place in action.screens} | {"overview", "kv", "dials.none"})
)
def test_no_help_text_is_cut_on_the_smallest_terminal(place):
    for role in Role:
        for row in help_page(place, state_of(sample.serving(), role=role), 80, 60):
            assert "…" not in plain_text(row)


async def test_q_quits_and_ctrl_c_only_says_how():
    running = app(sample.serving())
    async with running.run_test(size=(80, 24)) as pilot:
        await pilot.press("ctrl+c")
        assert "Press q to leave" in footer_of(running)
        assert running.is_running
        await pilot.press("q")
    assert running.return_code == 0


async def test_a_notice_gives_the_footer_back():
    running = app(sample.serving())
    async with running.run_test(size=(80, 24)) as pilot:
        await pilot.press("ctrl+c")
        running.now += 60
        running.draw()
        assert "? help" in footer_of(running)


async def test_stop_wants_the_name_typed_and_the_focus_is_on_cancel():
    running = app(sample.serving())
    async with running.run_test(size=(80, 24)) as pilot:
        await pilot.press("S")
        assert isinstance(running.screen, ConfirmScreen)
        assert running.focused.id == "cancel"
        assert "37 running, 12 waiting" in str(running.screen.query_one("#consequence", Static).content)
        go = running.screen.query_one("#go", Button)
        assert go.disabled
        running.screen.query_one(Input).focus()
        await pilot.press(*"gpu-8")
        assert go.disabled
        await pilot.press("backspace", "7")
        assert not go.disabled
        await pilot.press("enter", "enter")
        await pilot.pause()
        assert [method for method, _ in running.script.acted] == ["host.stop"]
        assert "stop host: done" in footer_of(running)


async def test_enter_on_a_fresh_dialog_does_nothing():
    running = app(sample.serving())
    async with running.run_test(size=(80, 24)) as pilot:
        for key in ("S", "R"):
            await pilot.press(key, "enter")
            await pilot.pause()
            assert isinstance(running.screen, OverviewScreen)
        assert running.script.acted == []


async def test_escape_leaves_a_dialog_and_letters_in_it_trigger_nothing():
    running = app(sample.serving())
    async with running.run_test(size=(80, 24)) as pilot:
        await pilot.press("R", "q", "p", "7")
        assert isinstance(running.screen, ConfirmScreen)
        await pilot.press("escape")
        assert isinstance(running.screen, OverviewScreen)
        assert running.script.acted == []
        assert running.state.frozen is None


async def test_the_numbers_in_a_dialog_stay_live():
    running = app(sample.serving())
    async with running.run_test(size=(80, 24)) as pilot:
        await pilot.press("R")
        running.script.post(SnapshotArrived(sample.serving(queue=Queue(running=5, waiting=0)), NOW))
        await pilot.pause()
        assert "5 running, 0 waiting" in str(running.screen.query_one("#consequence", Static).content)


async def test_an_action_carries_the_state_it_was_decided_on_and_a_fresh_key():
    running = app(sample.serving())
    async with running.run_test(size=(80, 24)) as pilot:
        for _ in range(2):
            await pilot.press("R", "right", "enter")
            await pilot.pause()
        first, second = (params for _, params in running.script.acted)
        assert first.expected_state_version == 7
        assert first.idempotency_key != second.idempotency_key


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (NoAnswer("engine.restart", 120), "no answer to engine.restart within 120 s; its outcome is unknown."),
        (ConnectionLost("the host closed it"), "The outcome is unknown; it is not sent again."),
        (ConnectionLost("it is being tried again", was_sent=False), "nothing was sent"),
        (
            CallFailed("engine.restart", RpcError(-32003, "it did not start " * 8, {"remedy": "look here"})),
            "Look here.",
        ),
    ],
)
async def test_what_came_of_an_action_is_said_to_its_end_and_not_tried_again(error, said):
    running = app(sample.serving())
    running.script.answer = error
    async with running.run_test(size=(80, 24)) as pilot:
        await pilot.press("R", "right", "enter")
        await pilot.pause()
        shown = " ".join(f"{text_of(running)} {footer_of(running)}".split())
        assert said in shown
        assert len(running.script.acted) == 1
        await pilot.press("x")
        running.draw()
        assert said not in " ".join(f"{text_of(running)} {footer_of(running)}".split())


async def test_a_viewer_is_offered_no_dangerous_action_and_its_keys_are_dead():
    running = app(sample.serving(), Role.VIEWER)
    async with running.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        assert "stop host" not in footer_of(running)
        assert "viewer (read-only)" in text_of(running)
        await pilot.press("S", "R")
        assert isinstance(running.screen, OverviewScreen)
        assert footer_of(running) == "restart engine: needs the admin role."
        await pilot.press("question_mark")
        await pilot.pause()
        assert "needs the admin role" in text_of(running, "#help")


async def test_without_a_connection_actions_are_off():
    running = app(sample.serving(), Role.ADMIN, Disconnected("gone", NOW, NOW + 3))
    async with running.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        assert "NO CONNECTION" in text_of(running)
        assert "stop host" not in footer_of(running)
        await pilot.press("S")
        assert isinstance(running.screen, OverviewScreen)
        assert footer_of(running) == "stop host: off while there is no connection."


@pytest.mark.parametrize(("key", "named"), [("x", "x"), ("f5", "f5"), ("shift+tab", "shift+tab"), ("1", "")])
async def test_a_key_that_does_nothing_says_so_at_once(key, named):
    running = app(sample.serving())
    async with running.run_test(size=(80, 24)) as pilot:
        await pilot.press(key)
        said = f"{named} does nothing here; ? shows the keys that do." if named else "? help"
        assert footer_of(running).startswith(said)


def focused(running):
    return running.focused and running.focused.id


@pytest.mark.parametrize(
    ("key", "size", "is_readable"),
    [
        ("S", (80, 24), True), ("S", (40, 12), True), ("S", (60, 11), True), ("S", (40, 11), False),
        ("S", (20, 24), False), ("R", (40, 12), True), ("R", (40, 7), False), ("R", (10, 3), False),
    ],
)  # fmt: skip
async def test_nobody_can_agree_to_what_does_not_fit_on_the_screen(key, size, is_readable, until):
    running = app(sample.serving())
    async with running.run_test(size=size) as pilot:
        await pilot.press(key)
        await pilot.pause()
        assert isinstance(running.screen, ConfirmScreen)
        await until(lambda: running.screen.query_one("#consequence").display == is_readable)
        await until(lambda: running.screen.has_class("-unreadable") != is_readable)
        if key == "S":
            await until(lambda: not is_readable or focused(running) == "cancel")
            await pilot.press("up")
            await until(lambda: not is_readable or focused(running) == "name")
            await pilot.press(*"gpu-7")
        await until(lambda: running.screen.query_one("#go", Button).disabled != is_readable)
        if is_readable:
            parts = running.screen.query("#dialog Static, #dialog Button, #dialog Input")
            await until(lambda: all(running.screen.region.contains_region(part.region) for part in parts))
        await pilot.press("escape")
        assert isinstance(running.screen, OverviewScreen)
    assert running.script.acted == []


async def test_a_dialog_follows_the_size_of_its_terminal(until):
    running = app(sample.serving())
    async with running.run_test(size=(80, 24)) as pilot:
        await pilot.press("R")
        await pilot.pause()
        go = running.screen.query_one("#go", Button)
        assert not go.disabled
        await pilot.resize_terminal(30, 5)
        await until(lambda: go.disabled)
        assert not go.display
        await pilot.press("right", "enter", "R")
        await pilot.resize_terminal(80, 24)
        await until(lambda: not running.screen.query_one("#go", Button).disabled)
    assert running.script.acted == []


async def test_a_dialog_whose_host_has_gone_can_only_be_left():
    running = app(sample.serving())
    async with running.run_test(size=(80, 24)) as pilot:
        await pilot.press("R", "right")
        assert running.focused.id == "go"
        running.script.post(Disconnected("gone", NOW, NOW + 3))
        await pilot.pause()
        said = str(running.screen.query_one("#consequence", Static).content)
        assert said == "Not now: there is no connection to the host."
        assert running.focused.id == "cancel"
        await pilot.press("right", "enter")
        assert isinstance(running.screen, OverviewScreen)
    assert running.script.acted == []


async def test_a_page_goes_stale_though_nothing_arrives(until):
    running = app(sample.serving())
    async with running.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        running.now += 30
        await until(lambda: "STALE" in text_of(running))


async def test_scrolling_keeps_its_place_when_new_events_come():
    running = app(sample.serving())
    async with running.run_test(size=(80, 24)) as pilot:
        await pilot.press("7", "down", "down")
        assert running.screen.top_seq == 4
        running.script.post(EventArrived(Event(seq=7, at=sample.AT, kind="x", text="brand new")))
        assert "brand new" not in text_of(running)
        assert "3 newer" in text_of(running)
        await pilot.press("home")
        assert "brand new" in text_of(running)
        await pilot.press("end")
        assert running.screen.top_seq == 1
        await pilot.press("pageup", "pageup")
        assert running.screen.top_seq is None


@pytest.mark.parametrize("size", [(1, 1), (10, 3), (79, 24), (80, 23), (81, 25), (200, 60)])
async def test_no_size_of_terminal_breaks_any_screen(size):
    running = app(sample.serving())
    async with running.run_test(size=size) as pilot:
        for keys in (
            ["7"],
            ["5"],
            ["enter"],
            ["enter"],
            ["enter"],
            ["escape"],
            ["1"],
            ["question_mark"],
            ["escape"],
            ["R"],
            ["escape"],
        ):
            await pilot.press(*keys)
            await pilot.pause()
        assert running.is_running


async def test_a_terminal_that_is_resized_gets_the_page_for_its_new_size(until):
    running = app(sample.serving())
    async with running.run_test(size=(80, 24)) as pilot:
        await pilot.resize_terminal(60, 10)
        await until(lambda: "80x24 needed" in text_of(running))
        await pilot.resize_terminal(160, 50)
        await until(lambda: "VLLM::EngineCore" in text_of(running))


async def test_an_unchanged_page_repaints_nothing(monkeypatch):
    running = app(sample.serving())
    async with running.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        painted = []
        monkeypatch.setattr(Board, "refresh", lambda self, *regions, **_: painted.extend(regions))
        running.draw()
        assert painted == []
        base = sample.serving()
        moved = msgspec.structs.replace(base, queue=msgspec.structs.replace(base.queue, running=38))
        running.script.post(SnapshotArrived(moved, NOW))
        assert [(region.y, region.height) for region in painted] == [(4, 1)]


def test_a_key_does_one_thing_at_a_place():
    everywhere = [a for a in ACTIONS if not a.screens and a.name != "leave"]  # a place may have its own way back
    for place in {place for action in ACTIONS for place in action.screens}:
        own = [key for a in ACTIONS if place in a.screens for key in a.key.split(",")]
        common = [key for a in everywhere for key in a.key.split(",")]
        assert len(own) == len(set(own))
        assert not set(own) & set(common)


def test_every_way_in_works_on_any_terminal():
    """No function keys, no ctrl+shift: tmux, mosh and a serial console swallow them."""
    keys = {key for action in ACTIONS for key in action.key.split(",")}
    assert not any(key.startswith(("f1", "f2", "ctrl+shift")) for key in keys)


def test_a_changed_run_covers_what_changed_and_no_more():
    old, new = (("running 37", ""),), (("running 38", ""),)
    assert changed_run(old, new, 20) == (9, 1)
    assert changed_run(old, old, 20) == (0, 0)
    assert changed_run((("模", ""),), (("a", ""),), 20) == (0, 20)
