"""Keeps the host's processes out of the terminal's reach, and clears them away whatever ends the host.

Ctrl-C in a terminal goes to every process of the foreground group: vLLM's workers end on it at once, under the requests
that a drain waits for. So `serve` forks: the child becomes the host in a session of its own; the parent stays in the
terminal, passes signals on to the host alone, and ends with its exit code. Once the host is gone, however it went, the
parent ends what is left of its session, so that no engine keeps its memory. If the parent is killed, the host gets
SIGTERM and drains.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

import psutil

from engine_host import process_tree
from engine_host.protocol.errors import EXIT_FAILED

_PR_SET_PDEATHSIG = 1
"""prctl(2): the signal a process gets when its parent ends."""
_PR_SET_CHILD_SUBREAPER = 36
"""prctl(2): orphans below become our children. The workers of a killed engine core must not escape to init."""
FORCED_EXIT_S = 20
"""After the second signal the host is gone within this, whatever hangs in it."""
_TRACKER_S = 5.0
"""What multiprocessing's resource trackers get to remove the shared memory of a host that is gone."""
_RELAYED = {
    signal.SIGINT: signal.SIGINT,
    signal.SIGTERM: signal.SIGTERM,
    # The terminal is gone, or the ssh connection: requests in flight still get their drain.
    signal.SIGHUP: signal.SIGTERM,
}


def become_host(scratch_dir: Path | None = None) -> int | None:
    """Fork. Returns None in the child, which is to run the host, and the host's exit code in the parent.

    The parent removes `scratch_dir` once the host is gone. Call before any thread or event loop exists.
    """
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        os.setsid()
        libc = ctypes.CDLL(None)
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
        if os.getppid() != parent:  # it ended before the lines above
            os._exit(EXIT_FAILED)
        return None
    try:
        return _supervise(child)
    finally:
        if scratch_dir is not None:
            shutil.rmtree(scratch_dir, ignore_errors=True)


def leave(exit_code: int) -> NoReturn:
    """End the host, without taking its interpreter apart.

    To be called when everything is closed. Objects of vLLM and PyTorch fail while they are taken apart and print
    tracebacks and leak reports onto the terminal, for up to two seconds; and a thread that still builds an engine,
    which nobody can interrupt, would be waited for. Nothing is lost: what is open the system closes, and what is left
    of children the parent ends.
    """
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(exit_code)


def _supervise(host: int) -> int:
    relayed = 0

    def relay(number: int, frame: FrameType | None) -> None:
        nonlocal relayed
        relayed += 1
        if relayed == 2:
            signal.alarm(FORCED_EXIT_S)
        with contextlib.suppress(ProcessLookupError):
            os.kill(host, _RELAYED[signal.Signals(number)])

    def force(number: int, frame: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(host, signal.SIGKILL)

    for number in _RELAYED:
        # `nohup` ignores SIGHUP for us, and means it.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, relay)
    signal.signal(signal.SIGALRM, force)
    _, status = os.waitpid(host, 0)
    signal.alarm(0)
    left = _end(process_tree.in_session(host))
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return code
    print(
        f"engine-host: the host (pid {host}) was killed by {signal.Signals(-code).name}; "
        f"{left} of its processes were still there and have been ended",
        file=sys.stderr,
    )
    return EXIT_FAILED


def _end(processes: Sequence[psutil.Process]) -> int:
    """Kill what a host left; returns how many of its processes were alive.

    Resource trackers see the others' end, and remove the shared memory of those that were killed, before they end too.
    """
    trackers = [process for process in processes if process_tree.is_resource_tracker(process)]
    left = process_tree.kill(process for process in processes if process not in trackers)
    deadline = time.monotonic() + _TRACKER_S
    while any(process_tree.is_alive(tracker) for tracker in trackers) and time.monotonic() < deadline:
        time.sleep(0.02)
    process_tree.kill(trackers)
    return left
