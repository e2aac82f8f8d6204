"""One child for one question: whatever becomes of the question, nothing of the child stays."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import psutil
import pytest

from engine_host.preflight.child import ChildError, ask_child


def forks(told: Path) -> tuple[str, ...]:
    """A child that starts another one before it has read its question, and waits for that."""
    return ("sh", "-c", f"sleep 300 & echo $! > {told}.new; mv {told}.new {told}; wait")


def is_alive(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


async def until_gone(pid: int) -> None:
    async with asyncio.timeout(10):
        while is_alive(pid):
            await asyncio.sleep(0.01)


def block_until_there(path: Path) -> None:
    """Nothing else of this process runs meanwhile: the child is quicker than whoever starts it."""
    deadline = time.monotonic() + 10
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.005)


async def until_asked(before: set[psutil.Process]) -> None:
    """Not a moment longer: what starts the child has not returned yet."""
    async with asyncio.timeout(10):
        while set(psutil.Process().children()) <= before:
            await asyncio.sleep(0)


@pytest.mark.parametrize("cancellations", [1, 2])
async def test_a_question_cancelled_while_its_child_starts_leaves_none_of_its_processes(
    tmp_path: Path, cancellations: int
) -> None:
    told, before = tmp_path / "pid", set(psutil.Process().children())
    asking = asyncio.create_task(ask_child(forks(told), b"", 60))
    await until_asked(before)
    block_until_there(told)
    for _ in range(cancellations):
        asking.cancel()
        await asyncio.sleep(0)
    await asyncio.wait({asking}, timeout=10)
    assert asking.cancelled()
    await until_gone(int(told.read_text()))
    async with asyncio.timeout(10):
        while not set(psutil.Process().children()) <= before:
            await asyncio.sleep(0.01)


async def test_a_question_that_is_late_leaves_none_of_its_processes(tmp_path: Path) -> None:
    told = tmp_path / "pid"
    with pytest.raises(TimeoutError):
        await ask_child(forks(told), b"", 1.0)
    await until_gone(int(told.read_text()))


async def test_a_child_that_cannot_be_started_is_told_by_name() -> None:
    with pytest.raises(ChildError, match="/no/such/program cannot be started: No such file or directory"):
        await ask_child(("/no/such/program",), b"", 5.0)
