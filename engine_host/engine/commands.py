"""What the host is asked to do: the queue between everybody who asks and the lifecycle, its one reader."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from engine_host.protocol.errors import EXIT_REFUSED, OperatorError

T = TypeVar("T")

_POLL_S = 0.1
"""How soon a cancellation is seen."""
_CANCEL_S = 10.0
"""What work that is given up gets to end."""


@dataclass
class Command:
    """Carried out or refused, and either way `done`."""

    kind: Literal["stop", "restart", "switch"]
    drain_timeout_s: float
    who: str
    also: list[Command] = field(default_factory=list)
    """Commands that asked for the same while this one was under way."""
    done: asyncio.Future[Any] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def refuse(self, fact: str, remedy: str) -> None:
        self.done.set_exception(OperatorError(fact, remedy, exit_code=EXIT_REFUSED))

    def refuse_stopping(self) -> None:
        """The host ends before it gets to this one."""
        self.refuse("the host is stopping", "Start it again with `engine-host serve PROFILE`.")


class Cancelled(Exception):
    """An operator cancelled the switch."""


class Interrupted(Exception):
    """The host is to stop, and what is under way gives way to that command."""

    def __init__(self, command: Command) -> None:
        super().__init__()
        self.command = command


class Commands:
    """Everybody may `send`; the rest is for the lifecycle alone."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[Command] = asyncio.Queue()

    async def send(self, command: Command) -> Any:
        """Returns the outcome; raises `OperatorError` when it is refused or fails."""
        self._queue.put_nowait(command)
        return await command.done

    async def next(self) -> Command:
        return await self._queue.get()

    async def within(self, timeout_s: float, until: asyncio.Future[Any] | None = None) -> Command | None:
        """The next command, or None after the timeout or when `until` is done."""
        get = asyncio.create_task(self._queue.get())
        waits: set[asyncio.Future[Any]] = {get} if until is None else {get, until}
        await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if get.done():
            return get.result()
        get.cancel()
        await asyncio.wait({get})
        # The queue hands an item to a getter cancelled in the same tick back to the next get(), so none is lost.
        return None

    async def uninterrupted(self, work: Coroutine[Any, Any, T], cancel: asyncio.Event | None, busy: str) -> T:
        """Await `work`. A stop command raises `Interrupted`, `cancel` raises `Cancelled`; other commands are refused,
        since the host is `busy`."""
        task = asyncio.create_task(work)
        try:
            while not task.done():
                if cancel is not None and cancel.is_set():
                    raise Cancelled
                command = await self.within(_POLL_S, task)
                if command is None:
                    continue
                if command.kind == "stop":
                    raise Interrupted(command)
                command.refuse(busy, "Follow it with `vllm-console watch`.")
            return task.result()
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task}, timeout=_CANCEL_S)

    def end(self) -> None:
        """The host has stopped: whoever asked for that has it, the others are refused."""
        while not self._queue.empty():
            late = self._queue.get_nowait()
            if late.kind == "stop":
                late.done.set_result("host stopped")
            else:
                late.refuse_stopping()
