"""The event log against a plain list, and its readers."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_host.telemetry.event_log import MAX_TEXT_CHARS, EventLog


def filled(count: int, capacity: int) -> EventLog:
    log = EventLog(capacity, clock=lambda: 5.0)
    for number in range(count):
        log.append("test", f"event {number + 1}")
    return log


@given(count=st.integers(0, 40), capacity=st.integers(1, 15), after=st.integers(0, 45), limit=st.integers(1, 20))
def test_it_keeps_the_newest_and_says_what_is_missed(count: int, capacity: int, after: int, limit: int) -> None:
    log = filled(count, capacity)
    all_after = list(range(after + 1, count + 1))
    kept_after = [seq for seq in all_after if seq > count - capacity]

    listed = log.after(after, limit)
    assert [event.seq for event in listed.events] == kept_after[-limit:]
    assert [event.text for event in listed.events] == [f"event {seq}" for seq in kept_after[-limit:]]
    assert listed.last_seq == log.last_seq == count
    assert listed.missed == (kept_after != all_after)

    page = log.page_after(after, limit)
    assert [event.seq for event in page.events] == kept_after[:limit]
    assert page.missed == listed.missed


def test_sequence_numbers_begin_at_one_and_have_no_gaps() -> None:
    log = EventLog()
    assert log.last_seq == 0
    assert [log.append("a", "x").seq, log.append("b", "y").seq] == [1, 2]


def test_a_text_is_one_bounded_line_without_escape_sequences() -> None:
    log = EventLog()
    assert log.append("a", "one\ntwo\x1b[2J\t three\x00").text == "one two [2J three"
    assert len(log.append("a", "x" * 10_000).text) == MAX_TEXT_CHARS


def test_a_log_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        EventLog(0)


async def test_a_reader_behind_does_not_wait() -> None:
    await asyncio.wait_for(filled(3, 10).wait_beyond(2), 10)


async def test_all_readers_are_woken_by_the_next_event() -> None:
    log = filled(3, 10)
    readers = [asyncio.create_task(log.wait_beyond(3)) for _ in range(5)]
    await asyncio.sleep(0)
    assert not any(reader.done() for reader in readers)
    log.append("test", "new")
    await asyncio.wait_for(asyncio.gather(*readers), 10)


async def test_a_reader_ahead_waits_until_the_log_has_caught_up() -> None:
    log = filled(1, 10)
    reader = asyncio.create_task(log.wait_beyond(2))
    await asyncio.sleep(0)
    log.append("test", "second")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not reader.done()
    log.append("test", "third")
    await asyncio.wait_for(reader, 10)


async def test_readers_that_gave_up_leave_nothing_behind() -> None:
    log = filled(1, 10)
    for _ in range(100):
        reader = asyncio.create_task(log.wait_beyond(1))
        await asyncio.sleep(0)
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)
    assert len(log._grew._waiters) == 0
