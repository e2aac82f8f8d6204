from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

import pytest

from engine_host.preflight.off_loop import off_loop


async def test_results_and_errors_come_back() -> None:
    assert await off_loop(lambda a, b: a + b, 1, 2) == 3
    with pytest.raises(KeyError):
        await off_loop({}.__getitem__, "x")


async def test_a_cancelled_wait_ends_at_once_and_the_late_result_is_dropped() -> None:
    release, entered = threading.Event(), threading.Event()

    def blocked() -> None:
        entered.set()
        release.wait(30)

    task = asyncio.create_task(off_loop(blocked))
    async with asyncio.timeout(10):
        while not entered.is_set():
            await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 2)
    release.set()
    assert await off_loop(int, "7") == 7


def test_a_call_that_never_returns_keeps_no_process_from_ending() -> None:
    code = """
import asyncio, threading
from engine_host.preflight.off_loop import off_loop
async def main():
    try:
        await asyncio.wait_for(off_loop(threading.Event().wait), 0.1)
    except TimeoutError:
        print("gave up")
asyncio.run(main())
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=20)
    assert ended.stdout == "gave up\n", ended.stderr
