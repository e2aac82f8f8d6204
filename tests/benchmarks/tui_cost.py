"""What the TUI costs its terminal and its machine: `python -m tests.benchmarks.tui_cost [--seconds 20]`.

Runs the real program in a pseudo-terminal against a scripted host whose every figure changes every second (worse than
any real host) and reports, for each terminal size: seconds until the first host data is on screen, bytes written a
second, processor time a refresh, and the process's proportional memory. Exit 1 when the 80x24 budgets are missed.
"""

from __future__ import annotations

import argparse
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
from dataclasses import dataclass
from pathlib import Path

import psutil

BUDGET = {"first_data_s": 1.0, "bytes_per_s": 4_000.0, "cpu_ms": 10.0, "pss_mb": 60.0}

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


def measure(socket: Path, columns: int, rows: int, seconds: float) -> Cost:
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
        _drain(master, SETTLE_S)
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
    print(f"{'terminal':<10}{'first data':>12}{'bytes/s':>10}{'CPU/refresh':>13}{'PSS':>10}")
    missed = False
    with tempfile.TemporaryDirectory() as directory:
        socket = Path(directory) / "host.sock"
        host = subprocess.Popen([sys.executable, "-m", "tests.console.serve_script", str(socket), "live"])
        try:
            while not socket.exists():
                if host.poll() is not None:
                    raise SystemExit("the scripted host did not start")
                time.sleep(0.05)
            for columns, rows in ((80, 24), (160, 50)):
                cost = measure(socket, columns, rows, seconds)
                print(
                    f"{columns}x{rows:<7}{cost.first_data_s:>10.2f} s{cost.bytes_per_s:>10,.0f}"
                    f"{cost.cpu_ms:>10.1f} ms{cost.pss_mb:>7.1f} MB"
                )
                if (columns, rows) == (80, 24):
                    missed = any(getattr(cost, name) > most for name, most in BUDGET.items())
        finally:
            host.terminate()
            host.wait()
    print(
        f"{'budget':<10}{BUDGET['first_data_s']:>10.2f} s{BUDGET['bytes_per_s']:>10,.0f}"
        f"{BUDGET['cpu_ms']:>10.1f} ms{BUDGET['pss_mb']:>7.1f} MB   (80x24)"
    )
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
