"""The pages that ask for more than the snapshot, over a real socket: both sides understand each other."""

from __future__ import annotations

from console.connect import Target
from console.tui.app import ConsoleApp
from engine_host.protocol.methods import DialsApplied
from engine_host.protocol.snapshot import State
from tests.console import sample_live
from tests.console.test_tui import footer_of, text_of


class WiredApp(ConsoleApp):
    CSS_PATH = "../../console/tui/theme.tcss"


def wired(host) -> WiredApp:
    host.snapshot = sample_live.live()
    host.answers |= {
        "kv.map": lambda params: sample_live.kv_map(params.cells),
        "requests.list": lambda params: sample_live.requests(),
        "dials.set": DialsApplied(
            state=State.SERVING,
            state_version=7,
            took_s=0.01,
            text="speculative_tokens 5 → 4",
            dials=sample_live.dials(),
        ),
    }
    return WiredApp(Target(host.path))


async def test_the_map_the_list_and_the_dials_go_over_the_socket(host, until):
    running = wired(host)
    async with running.run_test(size=(80, 24)) as pilot:
        await until(lambda: running.state.snapshot is not None)
        await pilot.press("2")
        await until(lambda: "a cell is 97 blocks of 16 tokens" in text_of(running))
        await pilot.press("3")
        await until(lambda: "1 to 17 of 49" in text_of(running))
        await pilot.press("A", "right", "enter")
        await until(lambda: "abort: requests.abort is done" in footer_of(running))
        await pilot.press("8", "down", "down", "minus", "enter")
        await until(lambda: "● speculative_tokens 5 → 4" in text_of(running))
    asked = dict(host.asked)
    assert asked["kv.map"] == {"cells": 624}
    assert asked["requests.list"] == {"order": "age", "state": None, "match": "", "limit": 500}
    assert asked["requests.abort"]["id"] == sample_live.request_id(0)
    assert asked["dials.set"]["values"] == {"speculative_tokens": 4}
    assert asked["dials.set"]["expected"] == {"speculative_tokens": 5}


async def test_an_answer_that_is_not_understood_is_said_so_and_the_figures_stay(host, until):
    running = wired(host)
    host.answers.clear()
    async with running.run_test(size=(80, 24)) as pilot:
        await until(lambda: running.state.snapshot is not None)
        await pilot.press("2")
        # The scripted host answers what it does not know as if it had been done.
        await until(lambda: "its kv.map is not understood" in " ".join(text_of(running).split()))
        assert "does not fill now" in text_of(running)
