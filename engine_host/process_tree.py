"""Ending processes for good: kill, then wait until they are really gone.

Killing is not enough: a process in the middle of a large unmap keeps its memory for a second or two, and a device that
still looks full makes the next engine's start fail.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import time
from collections.abc import Collection, Iterable, Sequence

import psutil

KILL_WAIT_S = 5.0
"""What killed processes get to disappear."""
_POLL_S = 0.01


def kill(processes: Iterable[psutil.Process]) -> int:
    """Kill and wait; returns how many of them were alive.

    Not `psutil.wait_procs`: it waits in vain for the child of somebody else that becomes ours when that one dies, as
    workers do whose core is killed (`supervisor`), and leaves it a zombie.
    """
    pending = list(processes)
    alive = [process for process in pending if is_alive(process)]
    for process in pending:  # also those whose first thread alone has ended
        with contextlib.suppress(psutil.Error):
            process.kill()
    deadline = time.monotonic() + KILL_WAIT_S
    while (pending := _not_gone(pending)) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    return len(alive)


def _not_gone(processes: Sequence[psutil.Process]) -> list[psutil.Process]:
    # Those that multiprocessing has started it reaps itself, in this call: one reaped by us would run for ever in its
    # books, pipes and all.
    its_own = {child.pid for child in multiprocessing.active_children()}
    parents = {process.pid for process in processes}
    return [process for process in processes if process.pid in its_own or not _is_gone(process, parents)]


def _is_gone(process: psutil.Process, parents: Collection[int]) -> bool:
    """Ended with all its threads, and reaped if that is ours to do.

    One whose first thread has ended is called a zombie while the others still hold its memory. And the child of one of
    `parents`, which end too, is ours in a moment.
    """
    try:
        if not process.is_running():
            return True
        parent = process.ppid()
        return process.status() == psutil.STATUS_ZOMBIE and os.waitpid(process.pid, os.WNOHANG)[0] != 0
    except ChildProcessError:
        return parent not in parents
    except psutil.Error:
        return True


def in_session(leader: int) -> list[psutil.Process]:
    """The processes of the session that `leader` founded, whether or not it still lives."""
    return [process for process in psutil.process_iter() if _session_of(process.pid) == leader]


def is_resource_tracker(process: psutil.Process) -> bool:
    """multiprocessing's: it ends by itself once all who share it are gone, and removes the shared memory they left."""
    try:
        return any(part.startswith("from multiprocessing.resource_tracker import main") for part in process.cmdline())
    except psutil.Error:
        return False  # gone


def is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _session_of(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except OSError:
        return None
