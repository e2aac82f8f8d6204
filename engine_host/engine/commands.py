"""What the host is asked to do: the queue between everybody who asks and the lifecycle, its one reader."""

from __future__ import annotations

import asyncio
from collections import deque
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
        self._waiting: deque[Command] = deque()
        self._has_some = asyncio.Event()

    async def send(self, command: Command) -> Any:
        """Returns the outcome; raises `OperatorError` when it is refused or fails. Whoever stops waiting for it does
        not take it back."""
        self._waiting.append(command)
        self._has_some.set()
        return await asyncio.shield(command.done)

    async def next(self) -> Command:
        await self._has_some.wait()
        return self._take()

    async def within(self, timeout_s: float, until: asyncio.Future[Any] | None = None) -> Command | None:
        """The next command, or None after the timeout or when `until` is done. A command is taken only in the moment
        in which it is returned, so a caller that is cancelled here, by a deadline of its own, loses none."""
        arrival = asyncio.create_task(self._has_some.wait())
        waits: set[asyncio.Future[Any]] = {arrival} if until is None else {arrival, until}
        try:
            await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            arrival.cancel()
        return self._take() if self._waiting else None

    def _take(self) -> Command:
        command = self._waiting.popleft()
        if not self._waiting:
            self._has_some.clear()
        return command

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
            result = task.result()
            if cancel is not None and cancel.is_set():  # in the moment in which the work ended
                raise Cancelled
            return result
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task}, timeout=_CANCEL_S)

    def end(self) -> None:
        """The host has stopped: whoever asked for that has it, the others are refused."""
        while self._waiting:
            late = self._take()
            if late.kind == "stop":
                late.done.set_result("host stopped")
            else:
                late.refuse_stopping()
