"""Shared memory that an engine's processes leave behind when they are killed.

Their queues and locks are segments in /dev/shm, which stay until whoever made them unlinks them, and a killed process
unlinks nothing. multiprocessing's resource tracker would do it when the whole host ends; a host runs for months and
outlives many engines. So what an engine's processes have mapped is noted while they live and unlinked after their end.

Never anybody else's: only names that multiprocessing makes up at random, only what a process of the engine had mapped,
and only while no process at all has it mapped.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from multiprocessing import resource_tracker
from pathlib import Path

import psutil

_PLACE = Path("/dev/shm")
_KINDS = {"psm_": "shared_memory", "sem.mp-": "semaphore"}
"""Prefix of the file -> what the resource tracker calls it."""

Identity = tuple[int, int]
"""Device and inode. Not the name: a semaphore is mapped under a temporary one that is gone."""


class SharedMemory:
    """Of one engine. Both methods read /proc, for milliseconds: call them in a thread."""

    def __init__(self) -> None:
        self._noted: set[Identity] = set()

    def note(self, processes: Iterable[psutil.Process]) -> None:
        """Remember what `processes` have mapped now."""
        for process in processes:
            self._noted |= _mapped(process.pid)

    def remove(self) -> list[str]:
        """Unlink what was noted and nobody has mapped any more; returns the names."""
        left = [entry for entry in _segments() if _identity(entry.stat(follow_symlinks=False)) in self._noted]
        if not left:
            return []
        in_use = set[Identity]().union(*(_mapped(pid) for pid in psutil.pids()))
        removed = []
        for entry in left:
            if _identity(entry.stat(follow_symlinks=False)) not in in_use:
                _unlink(entry.name)
                removed.append(entry.name)
        return removed


def _segments() -> list[os.DirEntry[str]]:
    try:
        with os.scandir(_PLACE) as entries:
            return [entry for entry in entries if _kind(entry.name) and entry.is_file(follow_symlinks=False)]
    except OSError:
        return []


def _kind(name: str) -> str | None:
    return next((kind for prefix, kind in _KINDS.items() if name.startswith(prefix)), None)


def _identity(found: os.stat_result) -> Identity:
    return found.st_dev, found.st_ino


def _mapped(pid: int) -> set[Identity]:
    """Files below /dev/shm; nothing for a process that is gone or another user's, whose segments are not ours."""
    found: set[Identity] = set()
    with contextlib.suppress(OSError), Path(f"/proc/{pid}/maps").open() as lines:
        for line in lines:
            if "/dev/shm/" in line:
                _, _, _, device, inode, *_ = line.split()
                major, minor = device.split(":")
                found.add((os.makedev(int(major, 16), int(minor, 16)), int(inode)))
    return found


def _unlink(name: str) -> None:
    with contextlib.suppress(OSError):
        (_PLACE / name).unlink()
    # The tracker would try again when the host ends, and complain. It may know the name or not: both are fine so.
    kind = _kind(name)
    assert kind is not None
    registered = "/" + name.removeprefix("sem.")
    resource_tracker.register(registered, kind)
    resource_tracker.unregister(registered, kind)
