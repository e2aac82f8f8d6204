"""How every page about the engine begins: before the first values, and while there is no engine."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from console import dials_desk, queue_desk
from console.dials_page import dials_page
from console.frame import Moment, opening
from console.kv_page import kv_page
from console.lines import Line, cells, plain_text
from console.model import State
from console.polled import Polled
from console.queue_page import queue_page
from console.speculation_page import speculation_page
from engine_host.protocol.snapshot import Queue
from tests.console import sample
from tests.console.test_overview import state_of

NOW = Moment(0.5, sample.AT)

PAGES: dict[str, tuple[Callable[[State, int, int], list[Line]], str]] = {
    "kv": (lambda state, *size: kv_page(state, Polled(), NOW, *size), "so there is no KV cache."),
    "queue": (lambda state, *size: queue_page(state, queue_desk.Desk(), Polled(), NOW, *size), "so requests wait"),
    "speculation": (lambda state, *size: speculation_page(state, NOW, *size), "so nothing is drafted."),
    "dials": (lambda state, *size: dials_page(state, dials_desk.Desk(), NOW, *size), "so there are no dials."),
}


@pytest.mark.parametrize("name", PAGES)
def test_before_the_first_values_it_says_that_it_waits_for_them(name: str) -> None:
    page, _ = PAGES[name]
    rows = page(State("host"), 80, 23)
    assert [cells(row) for row in rows] == [80] * 23
    assert plain_text(rows[2]).strip() == "Waiting for the first values from the host."


@pytest.mark.parametrize("name", PAGES)
def test_without_an_engine_it_says_why_and_what_follows(name: str) -> None:
    page, follows = PAGES[name]
    rows = page(state_of(sample.dead()), 80, 23)
    assert [cells(row) for row in rows] == [80] * 23
    text = "\n".join(map(plain_text, rows))
    assert "ENGINE FAILED" in text
    assert f"No engine runs, {follows}" in text


def test_the_queue_still_tells_how_many_wait_at_the_gate() -> None:
    page, _ = PAGES["queue"]
    waiting = msgspec.structs.replace(sample.dead(), queue=Queue(held=7))
    text = "\n".join(map(plain_text, page(state_of(waiting), 80, 23)))
    assert "held at the gate 7" in text


def test_what_the_engine_goes_through_leaves_the_page_the_rows_that_it_wants() -> None:
    state = state_of(sample.dead())
    tall, low = (opening(state, NOW, 80, 30, keeps=keeps, without_engine="") for keeps in (0, 27))
    assert len(low.rows) == 2 + 3 + 2 < len(tall.rows)
