"""The TUI's standing connection: connects, subscribes, and comes back after every loss.

Owns one task, `run`, which never ends by itself. What it learns goes to `post` as model messages. Reading resumes by
itself after a loss; a call does not: `call` sends over the connection of the moment, once.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from console.call_errors import CallFailed, ConnectionLost
from console.client import Client, connected, decoded
from console.connect import Target
from console.model import (
    SERIES,
    SPAN_S,
    Connected,
    Connecting,
    Disconnected,
    EventArrived,
    HistoryArrived,
    Message,
    SnapshotArrived,
)
from engine_host.protocol.errors import OperatorError
from engine_host.protocol.events import Event
from engine_host.protocol.methods import History, HistoryParams, SubscribeEvents, SubscribeTelemetry
from engine_host.protocol.snapshot import Snapshot

FIRST_RETRY_S = 0.5
LAST_RETRY_S = 5.0
JITTER = 0.2
"""Share by which waits vary, so that many consoles do not fall on a restarted host in step."""

SETTLED_AFTER_S = 10.0
"""A connection that lived this long was good: the next loss starts again with a short wait."""

EVENTS_AT_START = 200
"""How far back the first subscription reaches."""

R = TypeVar("R")


class Link:
    def __init__(
        self, target: Target, post: Callable[[Message], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._target = target
        self._post = post
        self._clock = clock
        self._client: Client | None = None
        self._boot_id = ""
        self._event_seq = 0

    async def run(self) -> None:
        failures = 0
        while True:
            self._post(Connecting(self._clock()))
            started = self._clock()
            try:
                reason = await self._serve_one_connection()
            except OperatorError as error:
                reason = error.reason if isinstance(error, ConnectionLost) else error.fact.rstrip(".")
            ended = self._clock()
            failures = 1 if ended - started > SETTLED_AFTER_S else failures + 1
            wait_s = backoff_s(failures)
            self._post(Disconnected(reason, ended, ended + wait_s))
            await asyncio.sleep(wait_s)

    async def call(self, method: str, type_: type[R], params: Any, deadline_s: float) -> R:
        """Call a method once; raises as `Client.read`."""
        if self._client is None:
            raise ConnectionLost("it is being tried again", was_sent=False)
        return await self._client.read(method, type_, params, deadline_s)

    async def _serve_one_connection(self) -> str:
        async with connected(self._target.path, self._notified) as client:
            hello = client.hello
            if hello.boot_id != self._boot_id:
                self._boot_id = hello.boot_id
                self._event_seq = max(0, hello.event_seq - EVENTS_AT_START)
            self._post(Connected(hello, self._clock()))
            self._client = client
            try:
                # The newest snapshot first: the first subscribed one may be a whole interval away.
                self._post(SnapshotArrived(await client.read("status", Snapshot), self._clock()))
                with contextlib.suppress(CallFailed):  # a host that keeps no history still has a present
                    history = await client.read("history", History, HistoryParams(series=list(SERIES), span_s=SPAN_S))
                    self._post(HistoryArrived(history))
                await client.call("telemetry.subscribe", SubscribeTelemetry(interval_s=1.0))
                await client.call("events.subscribe", SubscribeEvents(after_seq=self._event_seq))
                return await client.wait_closed()
            finally:
                self._client = None

    def _notified(self, method: str, params: msgspec.Raw) -> None:
        if method == "telemetry":
            self._post(SnapshotArrived(decoded(params, Snapshot, "telemetry"), self._clock()))
        elif method == "event":
            event = decoded(params, Event, "event")
            self._event_seq = max(self._event_seq, event.seq)
            self._post(EventArrived(event))


def backoff_s(failures: int) -> float:
    """How long to wait before the next try, after so many failed ones in a row (1 or more)."""
    wait_s = min(LAST_RETRY_S, FIRST_RETRY_S * 2.0 ** min(failures - 1, 10))
    return wait_s * random.uniform(1 - JITTER, 1 + JITTER)
