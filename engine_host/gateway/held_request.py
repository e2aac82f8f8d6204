"""One request at the gate: keeps what its client sends until the app asks for it, and notices when the client hangs up.

Only reading shows that a client has gone, so whoever waits is read from, and what is read is kept.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import MutableMapping
from typing import Any

from engine_host.engine.port import Receive

Message = MutableMapping[str, Any]

_FULL_POLL_S = 0.5
"""How soon it is seen that there is room again for more of a body."""


class HeldBytes:
    """How much of the bodies of those who wait is kept in memory, all together."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0

    def fits(self, count: int) -> bool:
        """A single body larger than the limit fits as long as there is no other: it could never go in otherwise."""
        return self.used == 0 or self.used + count <= self.limit


class HeldRequest:
    """`receive` is the server's; the app is given `replay`."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._kept: deque[Message] = deque()
        self._reading: asyncio.Task[Message] | None = None
        self._is_whole = False
        """Of its body, all has been read; what comes next can only be the client's end."""
        self.kept_bytes = 0

    async def read_body(self) -> bytes | None:
        """The whole body of an HTTP request, kept for the app; None when the client hung up before its end."""
        message = await self._receive()
        if message["type"] == "http.disconnect":
            return None
        body: bytes = message.get("body", b"")
        if message.get("more_body", False):
            parts = [body]
            while message.get("more_body", False):
                message = await self._receive()
                if message["type"] == "http.disconnect":
                    return None
                parts.append(message.get("body", b""))
            body = b"".join(parts)
        self._kept.append({"type": "http.request", "body": body, "more_body": False})
        self.kept_bytes = len(body)
        self._is_whole = True
        return body

    def replace_body(self, body: bytes) -> None:
        """The app will get `body` instead of the whole one that was read, which whoever replaces it keeps as well."""
        self._kept[0] = {"type": "http.request", "body": body, "more_body": False}
        self.kept_bytes += len(body)

    async def read_first(self) -> bool:
        """Read and keep one message; whether the client is still there."""
        message = await self._receive()
        self._kept.append(message)
        return not _is_end(message)

    async def until_done(self, decided: asyncio.Future[Any], held: HeldBytes) -> bool:
        """Wait for `decided`; False: the client has hung up before.

        What comes meanwhile is kept as long as it fits into `held`; then the client is made to wait with the rest.
        """
        charged = self.kept_bytes
        held.used += charged
        try:
            while not decided.done():
                waited_for: set[asyncio.Future[Any]] = {decided}
                reads_on = self._is_whole or held.used <= held.limit
                if reads_on:
                    waited_for.add(self._read_on())
                timeout = None if reads_on else _FULL_POLL_S
                await asyncio.wait(waited_for, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
                if not self._take_in():
                    return decided.done()
                held.used += self.kept_bytes - charged
                charged = self.kept_bytes
            return True
        finally:
            held.used -= charged

    async def until(self, opened: asyncio.Event, deadline_s: float) -> bool:
        """Wait until `opened` is set or the deadline has passed; False: the client has hung up before."""
        door = asyncio.create_task(opened.wait())
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + deadline_s
        try:
            # Not "until the door has opened once": another switch may have closed it again before this ran.
            while not opened.is_set() and (left := ends_at - loop.time()) > 0:
                if door.done():
                    door = asyncio.create_task(opened.wait())
                waited_for = {door, self._read_on()}
                await asyncio.wait(waited_for, timeout=left, return_when=asyncio.FIRST_COMPLETED)
                if not self._take_in():
                    return False
            return True
        finally:
            door.cancel()

    async def replay(self) -> Message:
        """What came first, first; then whatever the server has."""
        if self._kept:
            return self._kept.popleft()
        if self._reading is not None:
            reading, self._reading = self._reading, None
            return await reading
        return await self._receive()

    def drop(self) -> None:
        """Nobody will ask for what is kept or still read."""
        self._kept.clear()
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

    def _read_on(self) -> asyncio.Task[Message]:
        if self._reading is None:
            self._reading = asyncio.ensure_future(self._read())
        return self._reading

    async def _read(self) -> Message:
        return await self._receive()

    def _take_in(self) -> bool:
        """Keep what has been read by now; False: it was the client's end."""
        if self._reading is not None and self._reading.done():
            message, self._reading = self._reading.result(), None
            self._kept.append(message)
            if _is_end(message):
                return False
            self.kept_bytes += len(message.get("body", b""))
            self._is_whole = not message.get("more_body", False)
        return True


def _is_end(message: Message) -> bool:
    return message["type"] in ("http.disconnect", "websocket.disconnect")
