"""Whose child is it: engines beside each other, preflight checks at any time, workers that lost their parent."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from engine_host.engine.port import Death
from engine_host.engine.vllm.core_processes import (
    CoresAtStart,
    StartedChildren,
    death_of,
    has_lost_one_of_several,
)
from engine_host.preflight.child import ask_child

_PR_SET_CHILD_SUBREAPER = 36
SLEEP = "import time; time.sleep(60)"
CORE = f"""
import subprocess, sys, time
print(subprocess.Popen([sys.executable, "-c", "{SLEEP}"]).pid, flush=True)
time.sleep(60)
"""
"""A process with one worker, whose pid it prints."""


def until(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.01)
    raise AssertionError("timed out")


def is_there(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def llm_with(*exitcodes: int | None) -> Any:
    """An engine whose cores, with pids from 1, run (None) or have ended so."""
    processes = [SimpleNamespace(pid=pid, exitcode=code) for pid, code in enumerate(exitcodes, 1)]
    return SimpleNamespace(
        engine_core=SimpleNamespace(resources=SimpleNamespace(engine_manager=SimpleNamespace(processes=processes)))
    )


@pytest.mark.parametrize(
    ("exitcodes", "is_lost", "text"),
    [
        ([None], False, None),
        ([-signal.SIGKILL], False, "the engine core (pid 1) was killed by SIGKILL"),  # vLLM says so at once
        ([None, None], False, None),
        ([None, -signal.SIGKILL], True, "the engine core (pid 2) was killed by SIGKILL"),
        ([-signal.SIGTERM, 1], True, "the engine core (pid 2) ended with exit code 1"),
        ([-signal.SIGTERM, None], True, "the engine core (pid 1) was killed by SIGTERM"),
    ],
)
def test_one_core_of_several_that_has_ended_is_noticed_and_named(
    exitcodes: list[int | None], is_lost: bool, text: str | None
) -> None:
    llm = llm_with(*exitcodes)
    assert has_lost_one_of_several(llm) is is_lost
    death = death_of(llm)
    assert (death.text if death is not None else None) == text


class Family:
    """Children of the test process; `end` leaves none."""

    def __init__(self) -> None:
        self.cores: list[subprocess.Popen[str]] = []
        self.workers: list[psutil.Process] = []

    def core(self, *arguments: str, program: str = CORE) -> tuple[psutil.Process, psutil.Process]:
        """An engine core and its worker; `arguments` show in its command line."""
        core = subprocess.Popen([sys.executable, "-c", program, *arguments], stdout=subprocess.PIPE, text=True)
        assert core.stdout is not None
        worker = psutil.Process(int(core.stdout.readline()))
        self.cores.append(core)
        self.workers.append(worker)
        return psutil.Process(core.pid), worker

    def end(self) -> None:
        for worker in self.workers:
            if is_there(worker):
                worker.kill()
        for core in self.cores:
            core.kill()
            core.wait()
            assert core.stdout is not None
            core.stdout.close()
        for worker in self.workers:
            with contextlib.suppress(ChildProcessError):  # never adopted
                os.waitpid(worker.pid, 0)


@pytest.fixture
def family() -> Iterator[Family]:
    family = Family()
    yield family
    family.end()


@pytest.fixture(autouse=True)
def adopting() -> Iterator[None]:
    """As the host does: orphans below become children of this process."""
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    yield
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 0)


def test_an_engine_that_stops_takes_its_own_with_it_and_leaves_the_one_that_was_started_beside_it(
    family: Family,
) -> None:
    old = StartedChildren()
    old_core, old_worker = family.core()
    old.settled()
    new = StartedChildren()
    new_core, new_worker = family.core()
    new.settled()
    old.kill()
    assert not is_there(old_core) and not is_there(old_worker)
    assert is_there(new_core) and is_there(new_worker)
    new.kill()
    assert not is_there(new_core) and not is_there(new_worker)


def test_an_old_engine_that_stops_while_a_new_one_is_being_built_leaves_it(family: Family) -> None:
    old = StartedChildren()
    family.core()
    old.settled()
    new_core, new_worker = family.core()
    old.kill()
    assert is_there(new_core) and is_there(new_worker)


def test_a_start_that_is_abandoned_takes_all_that_it_made_and_leaves_the_engine_that_serves(family: Family) -> None:
    serving = StartedChildren()
    core, worker = family.core()
    serving.settled()
    abandoned = StartedChildren()
    half_built, its_worker = family.core()
    abandoned.kill()
    assert not is_there(half_built) and not is_there(its_worker)
    assert is_there(core) and is_there(worker)


def test_workers_of_a_core_that_was_killed_are_ended_with_their_engine(family: Family) -> None:
    engine = StartedChildren()
    core, worker = family.core()
    engine.settled()
    core.kill()
    until(lambda: worker.ppid() != core.pid)
    engine.kill()
    assert not is_there(worker)


def test_workers_that_ended_by_themselves_leave_no_zombie(family: Family) -> None:
    """vLLM kills its workers, and then their parent, which would have reaped them."""
    engine = StartedChildren()
    core, worker = family.core()
    engine.settled()
    worker.kill()
    core.kill()
    until(lambda: worker.ppid() != core.pid)
    began = time.monotonic()
    engine.kill()
    assert not psutil.pid_exists(worker.pid)
    assert time.monotonic() - began < 2


def test_a_process_whose_first_thread_alone_has_ended_is_not_taken_for_gone(family: Family) -> None:
    """It is called a zombie, and holds its memory: so a killed worker looks for a moment."""
    threads = "import ctypes, threading, time; threading.Thread(target=time.sleep, args=(60,)).start(); "
    program = threads + "import os; print(os.getpid(), flush=True); ctypes.CDLL(None).pthread_exit(None)"
    engine = StartedChildren()
    core, _ = family.core(program=program)
    until(lambda: core.status() == psutil.STATUS_ZOMBIE)
    engine.kill()
    assert not psutil.pid_exists(core.pid)


def test_the_resource_tracker_of_the_whole_process_is_nobodys(family: Family) -> None:
    engine = StartedChildren()
    tracker, _ = family.core("from multiprocessing.resource_tracker import main;main(17)")
    engine.kill()
    assert is_there(tracker)


def slow_check() -> asyncio.Task[Any]:
    slowly = "import sys, time; time.sleep(1); sys.stdout.write(sys.stdin.read())"
    return asyncio.create_task(ask_child((sys.executable, "-c", slowly), b"answer", 20))


async def until_more_than(children: set[psutil.Process]) -> None:
    async with asyncio.timeout(10):
        while set(psutil.Process().children()) <= children:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("moment", ["before the start", "during the start", "while it serves"])
async def test_a_check_that_runs_when_an_engine_ends_is_not_ended_with_it(family: Family, moment: str) -> None:
    """A killed check would say that vLLM crashed over the profile."""
    checks: list[asyncio.Task[Any]] = []

    async def check_if(now: str) -> None:
        if now == moment:
            children = set(psutil.Process().children())
            checks.append(slow_check())
            await until_more_than(children)

    await check_if("before the start")
    engine = StartedChildren()
    await check_if("during the start")
    core, _ = family.core()
    engine.settled()
    await check_if("while it serves")
    await asyncio.to_thread(engine.kill)
    assert not is_there(core)
    ended = await checks[0]
    assert (ended.output, ended.exit_code) == (b"answer", 0)


async def test_a_check_that_runs_when_a_start_is_abandoned_is_not_ended_with_it(family: Family) -> None:
    engine = StartedChildren()
    core, _ = family.core()
    children = set(psutil.Process().children())
    checking = slow_check()
    await until_more_than(children)
    await asyncio.to_thread(engine.kill)
    assert not is_there(core)
    assert (await checking).output == b"answer"


@pytest.mark.parametrize(
    ("ended_by", "text"), [(signal.SIGKILL, "was killed by SIGKILL"), (signal.SIGTERM, None)], ids=["killed", "by vLLM"]
)
async def test_a_core_killed_while_it_starts_is_named_with_its_signal(ended_by: int, text: str | None) -> None:
    cores = CoresAtStart()
    watching = asyncio.create_task(cores.watch())
    await asyncio.sleep(0)
    process = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(60,))
    process.start()
    try:
        while process.pid not in cores.pids:
            await asyncio.sleep(0.01)
        assert process.pid is not None
        os.kill(process.pid, ended_by)
        process.join(10)
        cores.look()
    finally:
        watching.cancel()
    expected = None if text is None else Death(f"the engine core (pid {process.pid}) {text}", by_signal=True)
    assert cores.death == expected


def test_a_killed_core_keeps_no_descriptor_of_ours() -> None:
    started = StartedChildren()
    context = multiprocessing.get_context("spawn")
    context.Process(target=time.sleep, args=(0,)).start()  # so that the resource tracker's own are counted before
    until(lambda: not multiprocessing.active_children())
    gc.collect()  # what other tests have left open goes now, or it would go below
    before = psutil.Process().num_fds()
    process = context.Process(target=time.sleep, args=(60,))
    process.start()
    started.kill()
    del process
    gc.collect()
    assert psutil.Process().num_fds() == before
