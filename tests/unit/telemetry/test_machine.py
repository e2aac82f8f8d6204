"""Machine figures: of this machine, and through the sampler with readings that hang or fail."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import psutil

from engine_host.telemetry.gpus import GpuReader
from engine_host.telemetry.machine import MachineFigures, MachineReader, MachineSampler


def no_library() -> object:
    raise ImportError


def wait_for(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, f"not within 30 s: {what}"
        time.sleep(0.005)


def test_the_figures_of_this_machine_are_plausible() -> None:
    figures = MachineReader(GpuReader(no_library)).read()
    assert figures.cpu_usage is not None
    assert 0.0 <= figures.cpu_usage <= 1.0
    assert figures.load_1m is not None
    assert figures.memory_total_bytes == psutil.virtual_memory().total
    assert figures.memory_used_bytes is not None
    assert 0 < figures.memory_used_bytes < figures.memory_total_bytes
    assert figures.gpus == ()


def test_the_memory_of_children_counts() -> None:
    reader = MachineReader(GpuReader(no_library))
    alone = reader.read().process_memory_bytes
    hold = "import sys; held = bytearray(100 << 20); held[::4096] = b'x' * len(held[::4096]); print(); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", hold], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        together = reader.read().process_memory_bytes
        child.communicate(b"")
    assert alone is not None
    assert together is not None
    assert alone > 0
    assert together - alone > 90 << 20


def test_the_gpus_are_told_which_processes_are_ours() -> None:
    asked: list[set[int]] = []

    class Gpus(GpuReader):
        def read(self, own_pids: object = ()) -> tuple[()]:
            assert isinstance(own_pids, set)
            asked.append(own_pids)
            return ()

    MachineReader(Gpus()).read()
    assert os.getpid() in asked[0]


def test_the_sampler_keeps_the_newest_figures() -> None:
    count = 0

    def read() -> MachineFigures:
        nonlocal count
        count += 1
        return MachineFigures(load_1m=float(count))

    sampler = MachineSampler(read, interval_s=0.001)
    assert sampler.latest() == MachineFigures()
    sampler.start()
    wait_for(lambda: (sampler.latest().load_1m or 0) >= 3, "a third reading")
    sampler.stop()
    stopped_at = count
    assert sampler.latest().load_1m == stopped_at


def test_figures_that_are_too_old_are_unknown() -> None:
    now = 100.0
    hangs = threading.Event()
    readings = [MachineFigures(load_1m=1.0)]

    def read() -> MachineFigures:
        if not readings:
            hangs.wait(10)
        return readings.pop()

    sampler = MachineSampler(read, interval_s=0.001, max_age_s=5.0, clock=lambda: now)
    sampler.start()
    wait_for(lambda: sampler.latest().load_1m == 1.0, "the first reading")
    now = 104.0
    assert sampler.latest().load_1m == 1.0
    now = 106.0
    assert sampler.latest() == MachineFigures()
    sampler.stop(timeout_s=0.01)  # does not wait for the driver that hangs
    hangs.set()


def test_a_reading_that_fails_does_not_end_the_sampler() -> None:
    attempts = 0

    def read() -> MachineFigures:
        nonlocal attempts
        attempts += 1
        if attempts < 3:
            raise RuntimeError("no /proc")
        return MachineFigures(load_1m=1.0)

    sampler = MachineSampler(read, interval_s=0.001)
    sampler.start()
    wait_for(lambda: sampler.latest().load_1m == 1.0, "a reading after two failures")
    sampler.stop()


def test_the_real_sampler_reads_this_machine() -> None:
    sampler = MachineSampler()
    sampler.start()
    wait_for(lambda: sampler.latest().memory_total_bytes is not None, "a reading")
    sampler.stop()
