"""The parent in the terminal: passes signals on, passes the exit code back, clears up after a killed host."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from engine_host import process_tree

HOST = """
import os, signal, subprocess, sys, time
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from engine_host.supervisor import become_host

signal.signal(signal.SIGHUP, signal.SIG_DFL)  # `nohup` around the tests is not meant for it
scratch = Path(sys.argv[1]).with_name("scratch")
scratch.mkdir()
code = become_host(scratch)
if code is not None:
    sys.exit(code)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
segment = SharedMemory(create=True, size=4096)
(scratch / "socket").touch()
(scratch / "segment").write_text(segment.name)


def leave(number, frame):
    child.kill()
    child.wait()
    segment.unlink()
    sys.exit(7)


def leave_the_child(number, frame):
    os._exit(9)


signal.signal(signal.SIGTERM, leave)
signal.signal(signal.SIGINT, leave)
signal.signal(signal.SIGUSR1, leave_the_child)
open(sys.argv[1], "w").write(f"{os.getpid()} {child.pid}\\n")  # from now on it can be told
time.sleep(600)
"""


def until(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.02)
    raise AssertionError("timed out")


def started(tmp_path: Path) -> tuple[subprocess.Popen[bytes], list[psutil.Process]]:
    """The supervisor, in a process group of its own, and the processes of its host."""
    note = tmp_path / "pids"
    supervisor = subprocess.Popen([sys.executable, "-c", HOST, str(note)], stderr=subprocess.PIPE, process_group=0)
    text = until(lambda: note.exists() and note.read_text().endswith("\n") and note.read_text())
    return supervisor, [psutil.Process(int(pid)) for pid in text.split()]


def gone(processes: list[psutil.Process]) -> bool:
    return not any(process_tree.is_alive(process) for process in processes)


def test_a_signal_reaches_the_host_alone_and_its_exit_code_comes_back(tmp_path: Path) -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        (tmp_path / number.name).mkdir()
        supervisor, family = started(tmp_path / number.name)
        os.killpg(supervisor.pid, number)
        assert supervisor.wait(15) == 7
        until(lambda family=family: gone(family))


def test_what_a_killed_host_leaves_behind_is_ended(tmp_path: Path) -> None:
    supervisor, family = started(tmp_path)
    family[0].kill()
    assert supervisor.wait(15) == 1
    assert supervisor.stderr is not None and b"killed by SIGKILL; 1 of its processes" in supervisor.stderr.read()
    assert gone(family)


def test_nothing_that_a_killed_host_put_down_stays(tmp_path: Path) -> None:
    supervisor, family = started(tmp_path)
    segment = Path("/dev/shm") / (tmp_path / "scratch" / "segment").read_text()
    assert segment.exists()
    family[0].kill()
    supervisor.wait(15)
    assert not segment.exists()
    assert not (tmp_path / "scratch").exists()


LEAVING = """
import atexit, sys, threading, time
from engine_host.supervisor import become_host, leave

code = become_host()
if code is not None:
    sys.exit(code)


class Fragile:
    def __del__(self):
        raise TypeError("taken apart too early")


kept = Fragile()
threading.Thread(target=time.sleep, args=(600,)).start()
atexit.register(print, "noise", file=sys.stderr)
print("the last line")
leave(3)
"""


def test_a_host_that_leaves_prints_what_it_had_to_say_and_no_noise() -> None:
    left = subprocess.run([sys.executable, "-c", LEAVING], capture_output=True, text=True, timeout=20)
    assert (left.returncode, left.stdout, left.stderr) == (3, "the last line\n", "")


def test_a_host_whose_supervisor_is_killed_ends_too(tmp_path: Path) -> None:
    supervisor, family = started(tmp_path)
    supervisor.kill()
    supervisor.wait(15)
    until(lambda: gone(family))


def test_a_host_that_ends_without_clearing_up_leaves_nothing_either(tmp_path: Path) -> None:
    supervisor, family = started(tmp_path)
    family[0].send_signal(signal.SIGUSR1)
    assert supervisor.wait(15) == 9
    assert gone(family)


def test_a_hang_up_that_nohup_ignores_is_ignored(tmp_path: Path) -> None:
    note = tmp_path / "pids"
    command = ["nohup", sys.executable, "-c", HOST, str(note)]
    supervisor = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, process_group=0)
    text = until(lambda: note.exists() and note.read_text().endswith("\n") and note.read_text())
    host = psutil.Process(int(text.split()[0]))
    supervisor.send_signal(signal.SIGHUP)
    supervisor.send_signal(signal.SIGTERM)
    assert supervisor.wait(15) == 7
    until(lambda: gone([host]))
