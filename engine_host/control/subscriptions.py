"""What a session receives unasked: snapshots at its interval, and events in order.

Neither keeps a queue. A snapshot is made when it is sent and only if the last one was read, so a slow reader gets
fewer and newer ones; events are read from the log by cursor when there is room for them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from engine_host.protocol.envelope import encode_notification
from engine_host.protocol.frames import MAX_FRAME_BYTES
from engine_host.protocol.snapshot import Snapshot
from engine_host.telemetry.event_log import EventLog

from .outlet import Outlet

log = logging.getLogger(__name__)

RETRY_S = 0.1
"""How soon a snapshot withheld from a busy reader is tried again."""

EVENTS_A_TURN = 64
"""Events sent before the loop gets its turn: replaying a full log may not delay requests to the engine."""


class TelemetryFeed:
    """Sends `telemetry` every interval from `start` until `stop`."""

    def __init__(self, outlet: Outlet, snapshot: Callable[[], Snapshot]) -> None:
        self._outlet = outlet
        self._snapshot = snapshot
        self._interval_s = 1.0
        self._timer: asyncio.TimerHandle | None = None

    def start(self, interval_s: float) -> None:
        """Begin, or go on at another interval; the first snapshot goes out at once."""
        self.stop()
        self._interval_s = interval_s
        if self._outlet.is_writable:
            self._send()
        self._wait(interval_s)

    def stop(self) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None

    def _wait(self, delay_s: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._tick)

    def _tick(self) -> None:
        if self._outlet.unread_bytes() == 0:
            self._send()
            self._wait(self._interval_s)
        else:
            self._wait(min(RETRY_S, self._interval_s))

    def _send(self) -> None:
        try:
            frame = encode_notification("telemetry", self._snapshot())
        except Exception:
            log.exception("no snapshot for a subscriber")
            return
        self._outlet.send(frame)


class EventFeed:
    """Sends `event` for every event after a cursor; the session calls `pump` when there may be something to send,
    until `stop`."""

    def __init__(self, outlet: Outlet, events: EventLog) -> None:
        self._outlet = outlet
        self._events = events
        self._cursor: int | None = None

    def start(self, after_seq: int | None) -> int:
        """Follow from `after_seq`, `None` for new events only; returns where it really begins.

        A cursor beyond the newest event is one of an earlier host process and means nothing here.
        """
        newest = self._events.last_seq
        self._cursor = newest if after_seq is None or after_seq > newest else after_seq
        return self._cursor

    def stop(self) -> None:
        self._cursor = None

    def pump(self) -> bool:
        """Send what there is room for; true when there is more to send and room for it."""
        if self._cursor is None or not self._outlet.is_writable or self._cursor >= self._events.last_seq:
            return False
        page = self._events.page_after(self._cursor, EVENTS_A_TURN).events
        self._cursor = page[-1].seq
        frames = (encode_notification("event", event) for event in page)
        self._outlet.send(b"".join(frame for frame in frames if len(frame) <= MAX_FRAME_BYTES))
        return self._outlet.is_writable and self._cursor < self._events.last_seq
