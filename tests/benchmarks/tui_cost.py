"""What the TUI costs its terminal and its machine: `python -m tests.benchmarks.tui_cost [--seconds 20]`.

Runs the real program in a pseudo-terminal against a scripted host whose every figure changes every second (worse than
any real host) and reports, for each page and terminal size: seconds until the first host data is on screen, bytes
written a second, processor time a refresh, and the process's proportional memory. Exit 1 when a budget is missed.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

BUDGET = {"first_data_s": 1.0, "bytes_per_s": 4_000.0, "cpu_ms": 10.0, "pss_mb": 60.0}
"""Of the overview at 80x24."""

LIST_BUDGET_MS = 15.0
"""Of a page with a list of 256, and of the others that ask for more than the snapshot."""

CASES = (
    ("overview", "1", "live", (80, 24), BUDGET["cpu_ms"]),
    ("overview", "1", "live", (160, 50), None),
    ("kv", "2", "live", (80, 24), LIST_BUDGET_MS),
    ("kv", "2", "live", (160, 50), None),
    ("speculation", "4", "live", (80, 24), LIST_BUDGET_MS),
    ("dials", "8", "live", (80, 24), LIST_BUDGET_MS),
    ("256 requests", "3", "live", (80, 24), LIST_BUDGET_MS),
    ("256 requests", "3", "live", (160, 50), LIST_BUDGET_MS),
    ("2,000 requests", "3G", "crowd", (80, 24), LIST_BUDGET_MS),
)
"""Page, the keys that lead there, what the host plays, the terminal, the budget in ms a refresh. At the end of a list
all of it is asked for."""

FIRST_DATA = b"Qwen2.5-72B"
"""Known only once a snapshot has been drawn."""

SETTLE_S = 5.0
"""Left out of the rates: the first page is drawn whole."""

GIVE_UP_S = 15.0


@dataclass(frozen=True)
class Cost:
    first_data_s: float
    bytes_per_s: float
    cpu_ms: float
    pss_mb: float


def measure(socket: Path, keys: str, columns: int, rows: int, seconds: float) -> Cost:
    pid, master = pty.fork()
    if pid == 0:
        os.environ.update(TERM="xterm-256color", COLORTERM="truecolor")
        os.execv(sys.executable, [sys.executable, "-m", "console.cli", "-t", str(socket)])
    try:
        fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        began = time.monotonic()
        seen = b""
        while FIRST_DATA not in seen:
            if time.monotonic() - began > GIVE_UP_S:
                raise SystemExit(f"no data on screen after {GIVE_UP_S} s; the terminal shows: {seen[-500:]!r}")
            seen += _read(master, 0.05)
        first_data_s = time.monotonic() - began
        for key in keys:
            os.write(master, key.encode())
            _drain(master, SETTLE_S / len(keys))
        process = psutil.Process(pid)
        before, started = _cpu_s(process), time.monotonic()
        written = _drain(master, seconds)
        spent_s, took_s = _cpu_s(process) - before, time.monotonic() - started
        pss = process.memory_full_info().pss
        return Cost(first_data_s, written / took_s, spent_s / took_s * 1e3, pss / 1e6)
    finally:
        os.kill(pid, signal.SIGTERM)
        _drain(master, 1.0)
        os.close(master)
        os.waitpid(pid, 0)


def _read(master: int, timeout_s: float) -> bytes:
    ready, _, _ = select.select([master], [], [], timeout_s)
    if not ready:
        return b""
    try:
        return os.read(master, 1 << 16)
    except OSError:
        return b""


def _drain(master: int, seconds: float) -> int:
    until = time.monotonic() + seconds
    total = 0
    while (left := until - time.monotonic()) > 0:
        got = len(_read(master, left))
        total += got
    return total


def _cpu_s(process: psutil.Process) -> float:
    """User and system time of all its threads; a refresh comes once a second, so seconds are refreshes."""
    times = process.cpu_times()
    return times.user + times.system


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--seconds", type=float, default=20.0)
    seconds = arguments.parse_args().seconds
    print(f"{'page':<16}{'terminal':<10}{'first data':>12}{'bytes/s':>10}{'CPU/refresh':>13}{'PSS':>10}")
    missed = False
    for page, keys, scene, (columns, rows), cpu_budget_ms in CASES:
        with scripted_host(scene) as socket:
            cost = measure(socket, keys, columns, rows, seconds)
        print(
            f"{page:<16}{columns}x{rows:<7}{cost.first_data_s:>10.2f} s{cost.bytes_per_s:>10,.0f}"
            f"{cost.cpu_ms:>10.1f} ms{cost.pss_mb:>7.1f} MB"
        )
        missed |= cpu_budget_ms is not None and cost.cpu_ms > cpu_budget_ms
        if (page, columns) == ("overview", 80):
            missed |= any(getattr(cost, name) > most for name, most in BUDGET.items())
    print(
        f"{'budget':<26}{BUDGET['first_data_s']:>10.2f} s{BUDGET['bytes_per_s']:>10,.0f}"
        f"{BUDGET['cpu_ms']:>10.1f} ms{BUDGET['pss_mb']:>7.1f} MB   (overview, 80x24; the others {LIST_BUDGET_MS} ms)"
    )
    return 1 if missed else 0


@contextlib.contextmanager
def scripted_host(scene: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as directory:
        socket = Path(directory) / "host.sock"
        host = subprocess.Popen([sys.executable, "-m", "tests.console.serve_script", str(socket), scene])
        try:
            while not socket.exists():
                if host.poll() is not None:
                    raise SystemExit("the scripted host did not start")
                time.sleep(0.05)
            yield socket
        finally:
            host.terminate()
            host.wait()


if __name__ == "__main__":
    sys.exit(main())
