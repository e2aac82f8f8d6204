"""The engine host as the demo's child: started in a session of its own, stopped with everything it started.

A session of its own means that a ctrl-C at the terminal reaches the demo alone, which then stops the host in order.
`engine-host serve` moves its host to yet another session, so what must be gone is found as the family of the process
that was started: it is noted before anything is stopped, since orphans name no parent any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from engine_host import process_tree

FORCED_S = 30.0
"""Between the second SIGTERM and the kill: more than the supervisor's own 20 s, and 5 s for what it kills then."""

ABANDON_S = 3.0
"""What a host that serves nobody yet gets to end by itself. A thread that imports vLLM hears nothing for a quarter of a
minute, and an engine that has not started holds nothing that a kill would lose."""

SIGNAL_GAP_S = 0.2
"""Between the two SIGTERMs at least: the kernel makes one of two that are pending together."""


class HostChild:
    """One started host; `stop` must be awaited by whoever called `start`."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path, log_start: int) -> None:
        self._process = process
        self._log_start = log_start
        self.log = log

    @classmethod
    async def start(cls, command: Sequence[str], log: Path) -> HostChild:
        """Run `command` with its output appended to `log`. Raises `OSError`."""
        with log.open("ab") as output:
            start = output.tell()  # before the host writes: the two share one position
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
            return cls(process, log, start)

    @property
    def returncode(self) -> int | None:
        return self._process.returncode

    @property
    def pid(self) -> int:
        return self._process.pid

    def last_lines(self, count: int) -> list[str]:
        """The last lines that this host wrote, without those of earlier runs in the same log."""
        with contextlib.suppress(OSError), self.log.open("rb") as file:
            file.seek(self._log_start)
            lines = file.read().decode(errors="replace").splitlines()
            return [line for line in lines if line.strip()][-count:]
        return []

    async def stop(self, drain_s: float, force: asyncio.Event) -> list[psutil.Process]:
        """SIGTERM; once more when `drain_s` is over or `force` is set; then the kill. Returns what outlived it."""
        family = self._family()
        self._signal(signal.SIGTERM)
        await self._ended_within(SIGNAL_GAP_S, None)
        if not await self._ended_within(drain_s, force):
            self._signal(signal.SIGTERM)
            await self._ended_within(FORCED_S, None)
        return await self._clear(family)

    async def abandon(self) -> list[psutil.Process]:
        """For a host that serves nobody yet: SIGTERM, and after `ABANDON_S` the kill. Returns what outlived it."""
        family = self._family()
        self._signal(signal.SIGTERM)
        await self._ended_within(ABANDON_S, None)
        return await self._clear(family)

    async def _clear(self, family: set[psutil.Process]) -> list[psutil.Process]:
        family |= self._family()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)  # also children that outlived their host
        await self._process.wait()
        return await asyncio.to_thread(_killed, family)

    def _family(self) -> set[psutil.Process]:
        """Everything below the process that was started; a `psutil.Process` is never mistaken for a later one."""
        with contextlib.suppress(psutil.NoSuchProcess):
            return set(psutil.Process(self.pid).children(recursive=True))
        return set()

    async def _ended_within(self, seconds: float, force: asyncio.Event | None) -> bool:
        waits: list[asyncio.Task[Any]] = [asyncio.create_task(self._process.wait())]
        if force is not None:
            waits.append(asyncio.create_task(force.wait()))
        try:
            await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        return self.returncode is not None

    def _signal(self, number: signal.Signals) -> None:
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)


def _killed(family: set[psutil.Process]) -> list[psutil.Process]:
    """Blocks; returns what is still there.

    A host that starts an engine makes processes while it is being ended; of those nothing is known but the session.
    """
    leaders = [process.pid for process in family if _leads_session(process.pid)]
    process_tree.kill(family)
    found = {*family, *(process for leader in leaders for process in process_tree.in_session(leader))}
    process_tree.kill(found)
    return [process for process in found if process_tree.is_alive(process)]


def _leads_session(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return os.getsid(pid) == pid
    return False
