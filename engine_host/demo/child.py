"""The engine host as the demo's child: started in a session of its own, stopped with everything it started.

A session of its own means that a ctrl-C at the terminal reaches the demo alone, which then stops the host in order,
and that whatever the host leaves behind is found by its process group and by nothing wider.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

FORCED_S = 15.0
"""Between the second SIGTERM and the kill: the host ends its engine by force within this."""

GROUP_POLL_S = 0.05


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
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
            return cls(process, log, output.tell())

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
        """SIGTERM; once more when `drain_s` is over or `force` is set; then kill the group. Nothing of it is left."""
        self._signal(signal.SIGTERM)
        if not await self._ended_within(drain_s, force):
            self._signal(signal.SIGTERM)
            await self._ended_within(FORCED_S, None)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)  # also children that outlived their host
        await self._process.wait()
        await self._group_gone()

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

    async def _group_gone(self) -> None:
        """Killed processes linger until they are reaped; by then their memory and ports are free."""
        with contextlib.suppress(ProcessLookupError, PermissionError, TimeoutError):
            async with asyncio.timeout(5.0):
                while True:
                    os.killpg(self.pid, 0)
                    await asyncio.sleep(GROUP_POLL_S)

    def _signal(self, number: signal.Signals) -> None:
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)
