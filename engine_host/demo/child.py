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

FORCED_S = 25.0
"""Between the second SIGTERM and the kill: more than the 20 s in which the host ends itself by force."""

GONE_S = 5.0
"""What killed processes get to disappear; by then their memory and ports are free."""

SIGNAL_GAP_S = 0.2
"""Between the two SIGTERMs at least: the kernel makes one of two that are pending together."""

GONE_POLL_S = 0.05


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

    async def stop(self, drain_s: float, force: asyncio.Event) -> None:
        """SIGTERM; once more when `drain_s` is over or `force` is set; then kill the family. Nothing of it is left."""
        family = self._family()
        self._signal(signal.SIGTERM)
        await self._ended_within(SIGNAL_GAP_S, None)
        if not await self._ended_within(drain_s, force):
            self._signal(signal.SIGTERM)
            await self._ended_within(FORCED_S, None)
        family |= self._family()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)  # also children that outlived their host
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        await self._process.wait()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GONE_S):
                # Polled: nobody tells of the end of processes that are not our children.
                while any(_is_alive(process) for process in family):  # noqa: ASYNC110
                    await asyncio.sleep(GONE_POLL_S)

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


def _is_alive(process: psutil.Process) -> bool:
    """A zombie is not: not every container has an init that reaps it, and it holds nothing."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
