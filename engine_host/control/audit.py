"""The audit log: who changed what, when, why, and what came of it. Append-only JSON lines in the state directory.

Every changing call leaves two lines, `intent` before and `outcome` after, each on disk before the call goes on; an
intent without an outcome is a host that died in between. Files are written in one thread, in order, because an fsync
may take longer than the event loop can stand still.
"""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec

from engine_host.protocol.errors import EXIT_FAILED, OperatorError

MAX_BYTES = 10 << 20
"""Of one file, before it is rotated: some 25,000 changing calls."""

KEEP = 5
"""Rotated files kept beside the current one."""

WRITE_TIMEOUT_S = 10.0
"""A disk that takes longer is as good as absent: the caller is told, not kept waiting."""


class AuditLog:
    """`path` and its rotated predecessors `path.1` (newest) to `path.KEEP`.

    The file is opened for every record: records are rare, and so a file that was moved or deleted under a running
    host is simply made again.
    """

    def __init__(
        self, path: Path, *, max_bytes: int = MAX_BYTES, keep: int = KEEP, timeout_s: float = WRITE_TIMEOUT_S
    ) -> None:
        self.path = path
        self._max_bytes = max_bytes
        self._keep = keep
        self._timeout_s = timeout_s
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="audit")

    async def write(self, record: dict[str, Any]) -> None:
        """Return when `record` is on disk. Raises `OperatorError` when it cannot be put there."""
        line = msgspec.json.encode(record) + b"\n"
        try:
            written = asyncio.get_running_loop().run_in_executor(self._writer, self._append, line)
            await asyncio.wait_for(written, self._timeout_s)
        except TimeoutError:
            raise self._unwritable(f"no answer from the disk for {self._timeout_s:g} s") from None
        except OSError as error:
            raise self._unwritable(error.strerror or str(error)) from None

    def close(self) -> None:
        self._writer.shutdown(wait=False, cancel_futures=True)

    def _unwritable(self, why: str) -> OperatorError:
        return OperatorError(
            f"the audit log {self.path} cannot be written: {why}",
            f"no change is made without it; make {self.path.parent} writable (df, ls -ld), then repeat the command",
            exit_code=EXIT_FAILED,
        )

    def _append(self, line: bytes) -> None:
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._size() + len(line) > self._max_bytes:
            self._rotate()
        is_new = not self.path.exists()
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = os.open(self.path, flags, 0o600)
        try:
            os.fchmod(fd, 0o600)
            size = os.fstat(fd).st_size
            # A line cut short by a full disk or a power cut must not swallow the next one.
            if size and os.pread(fd, 1, size - 1) != b"\n":
                line = b"\n" + line
            rest = memoryview(line)
            while rest:
                rest = rest[os.write(fd, rest) :]
            os.fsync(fd)
        finally:
            os.close(fd)
        if is_new:
            self._sync_directory()

    def _size(self) -> int:
        try:
            return self.path.stat().st_size
        except FileNotFoundError:
            return 0

    def _rotate(self) -> None:
        for number in range(self._keep, 0, -1):
            older = self._numbered(number)
            newer = self._numbered(number - 1)
            if newer.exists():
                newer.replace(older)

    def _numbered(self, number: int) -> Path:
        return self.path if number == 0 else self.path.with_name(f"{self.path.name}.{number}")

    def _sync_directory(self) -> None:
        fd = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
