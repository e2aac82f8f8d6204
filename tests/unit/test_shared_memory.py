"""Shared memory of killed processes: removed when it was theirs alone, and never otherwise."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from engine_host.engine.vllm.core_processes import StartedChildren
from engine_host.engine.vllm.shared_memory import SharedMemory

PLACE = Path("/dev/shm")

MAKER = """
import sys
from multiprocessing import get_context, resource_tracker
from multiprocessing.shared_memory import SharedMemory

segment = SharedMemory(create=True, size=4096)
lock = get_context("spawn").Lock()
# So that nobody cleans up after this process, as nobody does before the host ends.
resource_tracker.unregister("/" + segment.name.lstrip("/"), "shared_memory")
resource_tracker.unregister(lock._semlock.name, "semaphore")
resource_tracker._resource_tracker._stop()
print(segment.name.lstrip("/"), "sem." + lock._semlock.name.lstrip("/"), flush=True)
sys.stdin.read()
"""

USER = """
import mmap, sys
with open(sys.argv[1], "r+b") as file:
    mapped = mmap.mmap(file.fileno(), 0)
print("ready", flush=True)
sys.stdin.read()
"""


def process(stack: ExitStack, program: str, *arguments: str) -> tuple[subprocess.Popen[str], list[str]]:
    """It has printed its first line, whose words are returned, and waits."""
    started = subprocess.Popen(
        [sys.executable, "-c", program, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    stack.callback(started.wait)
    stack.callback(started.kill)
    assert started.stdout is not None
    return started, started.stdout.readline().split()


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


def killed(maker: subprocess.Popen[str]) -> None:
    maker.kill()
    maker.wait()


def test_what_killed_processes_had_mapped_is_removed(stack: ExitStack) -> None:
    maker, names = process(stack, MAKER)
    memory = SharedMemory()
    memory.note([psutil.Process(maker.pid)])
    assert memory.remove() == []  # it lives
    assert all((PLACE / name).exists() for name in names)
    killed(maker)
    assert sorted(memory.remove()) == sorted(names)
    assert not any((PLACE / name).exists() for name in names)


def test_it_goes_with_the_processes_of_an_engine_also_when_they_died_before(stack: ExitStack) -> None:
    children = StartedChildren()
    killed_early, names = process(stack, MAKER)
    _, more = process(stack, MAKER)
    children.settled()
    killed(killed_early)
    children.kill()
    assert not any((PLACE / name).exists() for name in (*names, *more))


def test_what_another_process_has_mapped_stays_until_it_ends(stack: ExitStack) -> None:
    maker, (segment, _) = process(stack, MAKER)
    user, _ = process(stack, USER, str(PLACE / segment))
    memory = SharedMemory()
    memory.note([psutil.Process(maker.pid)])
    killed(maker)
    assert segment not in memory.remove()
    assert (PLACE / segment).exists()
    killed(user)
    assert memory.remove() == [segment]


def test_what_was_not_noted_stays(stack: ExitStack) -> None:
    other, names = process(stack, MAKER)
    maker, _ = process(stack, MAKER)
    memory = SharedMemory()
    memory.note([psutil.Process(maker.pid)])
    killed(maker)
    killed(other)
    assert not set(names) & set(memory.remove())
    for name in names:
        assert (PLACE / name).exists()
        (PLACE / name).unlink()


def test_a_name_that_somebody_chose_stays(stack: ExitStack, tmp_path: Path) -> None:
    chosen = PLACE / f"engine-host-test-{tmp_path.name}"
    stack.callback(chosen.unlink)
    chosen.write_bytes(bytes(4096))
    user, _ = process(stack, USER, str(chosen))
    memory = SharedMemory()
    memory.note([psutil.Process(user.pid)])
    killed(user)
    assert memory.remove() == []
    assert chosen.exists()


def test_the_resource_tracker_of_the_host_does_not_complain(tmp_path: Path) -> None:
    """It knows the names of what the host's children made, and looks for them when the host ends."""
    program = tmp_path / "host.py"
    program.write_text(
        """
import multiprocessing, os, signal
import psutil
from multiprocessing.shared_memory import SharedMemory as Segment
from engine_host.engine.vllm.shared_memory import SharedMemory

def make(names):
    segment = Segment(create=True, size=4096)
    names.put(segment.name)
    names.close()
    names.join_thread()
    os.kill(os.getpid(), signal.SIGSTOP)

if __name__ == "__main__":
    spawn = multiprocessing.get_context("spawn")
    names = spawn.Queue()
    maker = spawn.Process(target=make, args=(names,))
    maker.start()
    name = names.get(timeout=30)
    memory = SharedMemory()
    memory.note([psutil.Process(maker.pid)])
    maker.kill()
    maker.join()
    print(name in memory.remove())
"""
    )
    ended = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=60)
    assert (ended.stdout.strip(), ended.stderr) == ("True", "")
