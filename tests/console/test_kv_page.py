"""The KV screen: its figures, its map, and how the map is asked for."""

from __future__ import annotations

import asyncio
import unicodedata

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from console.call_errors import CallFailed
from console.frame import Moment
from console.kv_map import CACHED, FREE, HELD, PARTLY, SHARED, look, map_rows
from console.kv_page import cells_wanted, kv_page
from console.lines import Tone, cells, plain_text
from console.model import Connected, Disconnected, SnapshotArrived
from console.polled import Polled
from engine_host.protocol.envelope import ErrorCode, RpcError
from engine_host.protocol.methods import KvMap
from engine_host.protocol.snapshot import Snapshot
from tests.console import sample, sample_live, sample_switch
from tests.console.anything import anything
from tests.console.scripted_source import NOW, app
from tests.console.test_overview import state_of
from tests.console.test_tui import footer_of, text_of

MAP = Polled(sample_live.kv_map(500), 0.4)

SCENES = {
    "live": (sample_live.live(), MAP),
    "filling": (sample_live.filling(), MAP),
    "not yet asked": (sample_live.live(), Polled()),
    "failed": (sample_live.live(), Polled(failure="block map: no answer " * 9)),
    "no scheduler": (sample.serving(), Polled(sample_live.no_kv_map(), 0.4)),
    "idle": (sample.idle_cpu(), Polled(sample_live.kv_map(500, 67, holders=[]), 0.4)),
    "dead": (sample.dead(), MAP),
    "switching": (sample_switch.switching(), MAP),
    "starting": (sample.starting(), Polled()),
}


def page(snapshot, polled=MAP, *more, width=80, height=23, now=0.5):
    rows = kv_page(state_of(snapshot, *more), polled, Moment(now, sample.AT + now), width, height)
    return "\n".join(plain_text(row).rstrip() for row in rows)


@pytest.mark.parametrize("scene", SCENES)
@given(width=st.integers(1, 240), height=st.integers(1, 80))
@settings(max_examples=60)
def test_a_page_has_exactly_the_size_of_its_terminal(scene, width, height):
    snapshot, polled = SCENES[scene]
    rows = kv_page(state_of(snapshot), polled, Moment(0.5, sample.AT), width, height)
    assert [cells(row) for row in rows] == [width] * height


@given(anything(Snapshot), anything(KvMap), st.integers(20, 200), st.integers(2, 60))
@settings(max_examples=150, suppress_health_check=list(HealthCheck))
def test_nothing_a_host_can_send_breaks_a_page_or_drives_the_terminal(snapshot, found, width, height):
    rows = kv_page(state_of(snapshot), Polled(found, 0.4), Moment(0.5, sample.AT), width, height)
    assert [cells(row) for row in rows] == [width] * height
    assert not any(unicodedata.category(c) == "Cc" for row in rows for c in plain_text(row))


@pytest.mark.parametrize(
    ("blocks", "found"),
    [
        ((1, 0, 0, 0), FREE),
        ((0, 1, 0, 0), CACHED),
        ((0, 0, 1, 0), HELD),
        ((0, 0, 0, 1), SHARED),
        ((9, 0, 1, 0), PARTLY),
        ((5, 0, 5, 0), HELD),
        ((6, 4, 0, 0), FREE),
        ((5, 5, 0, 0), CACHED),
        ((0, 0, 6, 4), HELD),
        ((0, 0, 5, 5), SHARED),
        ((0, 9, 0, 1), PARTLY),
        ((0, 0, 0, 0), FREE),
    ],
)
def test_a_cell_is_what_most_of_its_blocks_are(blocks, found):
    assert look(blocks) == found


def test_the_map_reads_without_colour_and_is_in_the_order_of_the_blocks():
    groups = [(0, 0, 0, 4), (0, 0, 4, 0), (3, 0, 1, 0), (0, 4, 0, 0), (4, 0, 0, 0)]
    assert [plain_text(row) for row in map_rows(groups, 5, 2)] == ["  █▓▒", "  ░·"]


def test_as_many_cells_are_asked_for_as_the_page_then_shows():
    state = state_of(sample_live.live())
    for width, height in ((80, 23), (120, 39), (60, 15), (200, 59)):
        wanted = cells_wanted(state, width, height)
        full = Polled(KvMap(at=0.0, blocks_per_cell=1, cells=[(0, 0, 1, 0)] * wanted, holders=[]), 0.4)
        text = page(sample_live.live(), full, width=width, height=height)
        assert text.count("▓") == wanted + 1  # and the one of the legend
        assert "cut off" not in text
    assert cells_wanted(state, 2000, 500) == 4096


def test_cells_beyond_the_terminal_are_counted():
    narrow = page(sample_live.live(), Polled(sample_live.kv_map(4_000), 0.4))
    assert "cut off" in narrow


def test_the_figures_name_what_they_are_of():
    text = page(sample_live.live())
    for what in (
        "held  41,231   shared   3,624   cached   9,800   free   9,381",
        "3.12 %   of the room in held blocks holds no token",
        "hit rate  41.2 %   of  589k prompt tokens looked up  (1 min)",
        "966,592 tokens: 29.5 requests of the longest length, 32,768",
        "does not fill now",
        "blocks of 16 tokens",
        "chatcmpl-000000000000",
        "2,048 blocks  3.39 %",
    ):
        assert what in text


def test_a_cache_that_fills_says_when_it_will_be_full():
    assert "▲ at this rate full in 40 s  (30 s)" in page(sample_live.filling())


def test_a_cache_that_is_full_says_what_comes_of_it():
    base = sample_live.live()
    full = msgspec.structs.replace(base.kv, usage=0.97, full_in_s=None)
    queue = msgspec.structs.replace(base.queue, waiting=15, preemptions_per_s=2.74, window_s=10.0)
    text = page(sample_live.live(kv=full, queue=queue))
    assert "Pressure   ▲ full now: 15 wait, 2.74 /s preempted  (10 s)" in text


def test_without_the_scheduler_there_are_dashes_and_the_reason():
    text = " ".join(page(*SCENES["no scheduler"]).split())
    assert "– vLLM 0.40.1 is newer than what the scheduler inside is known to work with (0.26 to 0.33)" in text
    assert "cached – free –" in text
    assert "Waste – known with the scheduler's own figures only" in text


def test_an_old_map_says_so_and_fades():
    state = state_of(sample_live.live(), SnapshotArrived(sample_live.live(), 12.0))
    rows = kv_page(state, MAP, Moment(12.4, sample.AT), 80, 23)
    text = "\n".join(plain_text(row) for row in rows)
    assert "▲ STALE: the map is 12 s old" in text
    drawn = next(row for row in rows if "▓▓▓" in plain_text(row))
    assert {tone for text, tone in drawn if text.strip()} == {Tone.FAINT}


def maps_asked(running):
    return [params.cells for method, params in running.script.read if method == "kv.map"]


async def test_the_map_is_asked_for_once_a_second_while_it_is_shown_and_not_elsewhere():
    running = app(sample_live.live())
    async with running.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        assert maps_asked(running) == []
        await pilot.press("2")
        await pilot.pause()
        assert "chatcmpl-000000000000" in text_of(running)
        assert len(maps_asked(running)) == 1
        running.draw()
        await pilot.pause()
        assert len(maps_asked(running)) == 1
        running.now += 1
        running.draw()
        await pilot.pause()
        assert len(maps_asked(running)) == 2
        await pilot.press("1")
        running.now += 1
        running.draw()
        await pilot.pause()
        assert len(maps_asked(running)) == 2


async def test_another_size_of_terminal_is_asked_for_at_once():
    running = app(sample_live.live())
    async with running.run_test(size=(80, 24)) as pilot:
        await pilot.press("2")
        await pilot.pause()
        await pilot.resize_terminal(120, 40)
        await pilot.pause()
        await pilot.pause()
        first, second = maps_asked(running)
        assert second > first


async def test_a_slow_answer_is_waited_for_and_nothing_is_asked_on_top():
    answer = asyncio.get_running_loop().create_future()
    running = app(sample_live.live())
    running.script.answers["kv.map"] = answer
    async with running.run_test(size=(80, 24)) as pilot:
        await pilot.press("2")
        for _ in range(5):
            running.now += 1
            running.script.post(SnapshotArrived(sample_live.live(), running.now))
            await pilot.pause()
        assert len(maps_asked(running)) == 1
        assert "asking for the map …" in text_of(running)
        answer.set_result(sample_live.kv_map(600))
        await pilot.pause()
        assert "chatcmpl-000000000000" in text_of(running)


async def test_a_frozen_map_stays_and_is_not_asked_for():
    running = app(sample_live.live())
    async with running.run_test(size=(80, 24)) as pilot:
        await pilot.press("2")
        await pilot.pause()
        await pilot.press("p")
        before = text_of(running).splitlines()[2:]
        running.script.answers["kv.map"] = sample_live.no_kv_map
        running.now += 5
        running.script.post(SnapshotArrived(sample_live.filling(), running.now))
        await pilot.pause()
        assert text_of(running).splitlines()[2:] == before
        assert len(maps_asked(running)) == 1
        await pilot.press("p")
        await pilot.pause()
        assert "vLLM 0.40.1 is newer" in text_of(running)


async def test_a_host_that_knows_no_map_says_so_and_the_figures_stay():
    running = app(sample_live.live())
    running.script.answers["kv.map"] = CallFailed("kv.map", RpcError(ErrorCode.UNKNOWN_METHOD, "no such method", {}))
    async with running.run_test(size=(80, 24)) as pilot:
        await pilot.press("2")
        await pilot.pause()
        assert "× block map: no such method" in text_of(running)
        assert "does not fill now" in text_of(running)


async def test_another_host_process_has_another_map():
    running = app(sample_live.live())
    async with running.run_test(size=(80, 24)) as pilot:
        await pilot.press("2")
        await pilot.pause()
        running.script.post(Disconnected("gone", NOW, NOW + 1))
        assert "chatcmpl-000000000000" in text_of(running)
        running.script.answers["kv.map"] = asyncio.get_running_loop().create_future()
        running.script.post(Connected(sample.hello(boot_id="boot-b"), NOW))
        other = msgspec.structs.replace(sample_live.live().host, boot_id="boot-b")
        running.script.post(SnapshotArrived(sample_live.live(host=other), NOW))
        await pilot.pause()
        assert "chatcmpl-000000000000" not in text_of(running)


async def test_the_screen_is_reached_by_its_number_and_named_in_the_footer():
    running = app(sample_live.live())
    async with running.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        assert "2 kv" in footer_of(running)
