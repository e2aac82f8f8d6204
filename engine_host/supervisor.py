"""Keeps the host's processes out of the terminal's reach, and clears them away if the host itself is killed.

Ctrl-C in a terminal goes to every process of the foreground group: vLLM's workers end on it at once, under the requests
that a drain waits for. So `serve` forks: the child becomes the host in a session of its own; the parent stays in the
terminal, passes signals on to the host alone, and ends with its exit code. If the host is killed without a chance to
clean up, the parent ends what is left of its session, so that no engine keeps its memory. If the parent is killed, the
host gets SIGTERM and drains.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from types import FrameType

import psutil

from engine_host.protocol.errors import EXIT_FAILED

_PR_SET_PDEATHSIG = 1
"""prctl(2): the signal a process gets when its parent ends."""
_RELAYED = {
    signal.SIGINT: signal.SIGINT,
    signal.SIGTERM: signal.SIGTERM,
    # The terminal is gone, or the ssh connection: requests in flight still get their drain.
    signal.SIGHUP: signal.SIGTERM,
}
_KILL_WAIT_S = 5.0
"""What killed processes get to disappear."""


def become_host() -> int | None:
    """Fork. Returns None in the child, which is to run the host, and the host's exit code in the parent.

    Call before any thread or event loop exists.
    """
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        os.setsid()
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it ended before the line above
            os._exit(EXIT_FAILED)
        return None
    return _supervise(child)


def _supervise(host: int) -> int:
    def relay(number: int, frame: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(host, _RELAYED[signal.Signals(number)])

    for number in _RELAYED:
        signal.signal(number, relay)
    _, status = os.waitpid(host, 0)
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return code
    left = end_session(host)
    print(
        f"engine-host: the host (pid {host}) was killed by {signal.Signals(-code).name}; "
        f"{left} of its processes were still there and have been ended",
        file=sys.stderr,
    )
    return EXIT_FAILED


def end_session(leader: int) -> int:
    """Kill every process of the session that `leader` founded; returns how many there were."""
    left = [process for process in psutil.process_iter() if _session_of(process.pid) == leader]
    for process in left:
        with contextlib.suppress(psutil.Error):
            process.kill()
    deadline = time.monotonic() + _KILL_WAIT_S
    while any(_is_alive(process) for process in left) and time.monotonic() < deadline:
        time.sleep(0.05)
    return len(left)


def _session_of(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except OSError:
        return None


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
