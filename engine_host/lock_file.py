"""A lock that names its holder: one host a control socket, one host a state directory.

Held by flock, which the kernel drops with its holder; the file itself says nothing about whether anyone is behind it.
The file stays when the lock is let go; it goes only with the directory that was made for it, and whoever had opened it
meanwhile sees that and opens the new one: two hosts must not lock two different files of one name.
"""

from __future__ import annotations

import fcntl
import os
import weakref
from dataclasses import dataclass
from pathlib import Path

import msgspec
import psutil

from engine_host.protocol.errors import OperatorError


@dataclass(frozen=True)
class Holder:
    """Who has something that two hosts cannot share; `pid` is `None` when it did not say."""

    pid: int | None
    label: str = ""
    """What it runs."""

    @property
    def is_alive(self) -> bool:
        return self.pid is not None and self.pid > 0 and psutil.pid_exists(self.pid)

    def __str__(self) -> str:
        what = f" running {self.label}" if self.label else ""
        return f"process {self.pid or 'unknown'}{what}: {_command_of(self.pid)}"


class LockFile:
    """The lock at `path`, from `take` to `release`. `label`: what the next one who wants it is told of this host."""

    def __init__(self, path: Path, label: str = "") -> None:
        self.path = path
        self._label = label
        self._fd: int | None = None

    def take(self) -> Holder | None:
        """Take the lock, or say who has it. Raises `OperatorError`, or `OSError` when the disk cannot take it
        or the directory is not there."""
        while True:
            fd = self._open()
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                holder = _read_holder(fd)
                os.close(fd)
                return holder
            if os.fstat(fd).st_nlink:
                break
            os.close(fd)
        self._fd = fd
        _held.add(self)
        os.ftruncate(fd, 0)
        os.pwrite(fd, msgspec.json.encode({"pid": os.getpid(), "label": self._label}) + b"\n", 0)
        return None

    def _open(self) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            return os.open(self.path, flags, 0o600)
        except FileNotFoundError:
            raise  # the directory is gone
        except OSError as error:
            raise OperatorError(
                f"cannot open the lock file {self.path}: {error.strerror}", f"rm {self.path}, then start again"
            ) from None

    def remove(self) -> None:
        """Remove the file of a lock that is held, and let go of it."""
        if self._fd is not None:
            self.path.unlink(missing_ok=True)
            self._forget()

    def release(self) -> None:
        """May be called twice, and without having the lock."""
        if self._fd is not None:
            os.ftruncate(self._fd, 0)
            self._forget()

    def _forget(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
        _held.discard(self)


_held: weakref.WeakSet[LockFile] = weakref.WeakSet()
"""To be let go in forked children: an engine core that outlives a killed host must not keep its locks."""


def _let_go_in_child() -> None:
    for lock in list(_held):
        lock._forget()


os.register_at_fork(after_in_child=_let_go_in_child)


def _read_holder(fd: int) -> Holder:
    try:
        content = msgspec.json.decode(os.pread(fd, 65536, 0))
    except (msgspec.DecodeError, RecursionError):
        content = None  # taken this instant, not yet written
    if not isinstance(content, dict):
        return Holder(None)
    pid, label = content.get("pid"), content.get("label")
    return Holder(pid if isinstance(pid, int) else None, label if isinstance(label, str) else "")


def _command_of(pid: int | None) -> str:
    try:
        return " ".join(psutil.Process(pid).cmdline())[:200] or "(no command line)"
    except psutil.Error:
        return "(command line not readable)"
