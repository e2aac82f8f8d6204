"""The event log: what happened, kept in a bounded ring that any number of readers follow by sequence number.

One writer, one event loop. A reader is only a number - the last sequence it has seen - so a slow one, or one that went
away, costs the log nothing; it learns from `missed` that it was too slow.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from engine_host.protocol.events import Event, Severity
from engine_host.protocol.methods import EventList

MAX_TEXT_CHARS = 500
"""An event is one line for a person. Longer texts, an engine's whole message for instance, belong in `data`."""


class EventLog:
    """Events of one host process, the newest `capacity` of them."""

    def __init__(self, capacity: int = 10_000, clock: Callable[[], float] = time.time) -> None:
        if capacity < 1:
            raise ValueError(f"an event log keeps at least one event, not {capacity}")
        self._capacity = capacity
        self._clock = clock
        # A ring indexed by seq: reading from any cursor is a slice, where a deque would walk to it.
        self._ring: list[Event] = []
        self._last_seq = 0
        self._grew = asyncio.Event()

    @property
    def last_seq(self) -> int:
        """Of the newest event; 0 when there is none."""
        return self._last_seq

    @property
    def first_kept_seq(self) -> int:
        """Of the oldest event still kept; `last_seq + 1` when none is."""
        return self._last_seq - len(self._ring) + 1

    def append(
        self,
        kind: str,
        text: str,
        *,
        severity: Severity = Severity.INFO,
        who: str = "host",
        data: dict[str, Any] | None = None,
    ) -> Event:
        """Record an event; `text` is folded to one line without control characters and cut at `MAX_TEXT_CHARS`."""
        event = Event(
            seq=self._last_seq + 1,
            at=self._clock(),
            kind=kind,
            severity=severity,
            text=one_line(text, MAX_TEXT_CHARS),
            who=who,
            data=data or {},
        )
        self._last_seq = event.seq
        if len(self._ring) < self._capacity:
            self._ring.append(event)
        else:
            self._ring[(event.seq - 1) % self._capacity] = event
        # A fresh asyncio.Event for the next append: those who waited wake once and hold nothing afterwards.
        grew, self._grew = self._grew, asyncio.Event()
        grew.set()
        return event

    def after(self, seq: int, limit: int) -> EventList:
        """The newest `limit` kept events after `seq`, oldest first."""
        first = max(seq + 1, self.first_kept_seq, self._last_seq - limit + 1)
        return self._list(seq, first, self._last_seq)

    def page_after(self, seq: int, limit: int) -> EventList:
        """The oldest `limit` kept events after `seq`: what a reader that wants every event takes next."""
        first = max(seq + 1, self.first_kept_seq)
        return self._list(seq, first, min(first + limit - 1, self._last_seq))

    def _list(self, seq: int, first: int, last: int) -> EventList:
        events = [self._ring[(n - 1) % self._capacity] for n in range(first, last + 1)]
        return EventList(events=events, last_seq=self._last_seq, missed=seq + 1 < self.first_kept_seq)

    async def wait_beyond(self, seq: int) -> None:
        """Return once an event after `seq` exists; at once when it does already. Cancellation leaves nothing behind.

        The one wait here without a deadline of its own: silence is normal, and the caller owns the task.
        """
        while self._last_seq <= seq:
            await self._grew.wait()


def one_line(text: str, limit: int) -> str:
    """`text` with every run of white space and control characters as one space, at most `limit` characters.

    A reason typed by one operator is printed on another's terminal: no escape sequence may pass through it.
    """
    folded = " ".join("".join(char if char.isprintable() else " " for char in text[: 4 * limit]).split())
    return folded if len(folded) <= limit else folded[: limit - 1] + "…"
