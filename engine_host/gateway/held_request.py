"""One request that waits at the gate: keeps what its client sends, and notices when the client hangs up."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import MutableMapping
from typing import Any

from engine_host.engine.port import Receive


class HeldRequest:
    """Reads the body while it waits, since only reading shows that a client has gone; the app gets it afterwards."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._kept: deque[MutableMapping[str, Any]] = deque()
        self._reading: asyncio.Task[MutableMapping[str, Any]] | None = None

    async def until(self, opened: asyncio.Event, deadline_s: float) -> Receive | None:
        """Returns a `receive` for the app once `opened` is set or the deadline has passed; None when the client has
        hung up."""
        door = asyncio.create_task(opened.wait())
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + deadline_s
        try:
            # Not "until the door has opened once": another switch may have closed it again before this ran.
            while not opened.is_set() and (left := ends_at - loop.time()) > 0:
                if door.done():
                    door = asyncio.create_task(opened.wait())
                if self._reading is None:
                    self._reading = asyncio.ensure_future(self._read())
                await asyncio.wait({door, self._reading}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
                if self._reading.done():
                    message, self._reading = self._reading.result(), None
                    if message["type"] in ("http.disconnect", "websocket.disconnect"):
                        return None
                    self._kept.append(message)
            return self._replay
        except asyncio.CancelledError:
            if self._reading is not None:
                self._reading.cancel()
            raise
        finally:
            door.cancel()

    async def _read(self) -> MutableMapping[str, Any]:
        return await self._receive()

    async def _replay(self) -> MutableMapping[str, Any]:
        if self._kept:
            return self._kept.popleft()
        if self._reading is not None:
            reading, self._reading = self._reading, None
            return await reading
        return await self._receive()
