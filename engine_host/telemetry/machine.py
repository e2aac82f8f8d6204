"""Figures of the machine: CPU, memory and this host's processes by psutil, GPUs by `gpus`.

Both may block for tens of milliseconds, and a driver for ever, so they are read in a thread of their own; readers get
the last figures, or unknown ones once those are too old to be called live.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import psutil

from engine_host.protocol.snapshot import Gpu

from .gpus import GpuReader

log = logging.getLogger(__name__)

INTERVAL_S = 1.0

MAX_AGE_S = 5.0
"""Older figures are unknown: a hung driver must not look like a busy GPU at 97 %."""


@dataclass(frozen=True)
class MachineFigures:
    """One reading. All unknown by default."""

    cpu_usage: float | None = None
    """Of all cores, 0..1, since the reading before."""
    load_1m: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    process_memory_bytes: int | None = None
    """Resident, of this process and all its children; pages they share are counted in each."""
    gpus: tuple[Gpu, ...] = ()


class MachineReader:
    """Takes one reading of everything; blocks, so not for the event loop."""

    def __init__(self, gpus: GpuReader | None = None) -> None:
        self._gpus = gpus or GpuReader()
        self._process = psutil.Process()
        psutil.cpu_percent()  # the first answer of a process is meaningless; the next is since now

    def read(self) -> MachineFigures:
        memory = psutil.virtual_memory()
        own = _with_children(self._process)
        return MachineFigures(
            cpu_usage=psutil.cpu_percent() / 100,
            load_1m=psutil.getloadavg()[0],
            memory_used_bytes=memory.total - memory.available,
            memory_total_bytes=memory.total,
            process_memory_bytes=sum(_resident_bytes(process) for process in own),
            gpus=self._gpus.read({process.pid for process in own}),
        )

    def close(self) -> None:
        self._gpus.close()


class MachineSampler:
    """Reads once a second in a thread from `start` to `stop`; `latest` never blocks."""

    def __init__(
        self,
        read: Callable[[], MachineFigures] | None = None,
        *,
        interval_s: float = INTERVAL_S,
        max_age_s: float = MAX_AGE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read = read
        self._interval_s = interval_s
        self._max_age_s = max_age_s
        self._clock = clock
        self._latest: tuple[float, MachineFigures] | None = None
        self._ended = threading.Event()
        # A daemon, so that a read that hangs in a driver does not keep the process from ending.
        self._thread = threading.Thread(target=self._sample, name="machine figures", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float = 1.0) -> None:
        """End the thread, waiting for a reading under way for at most `timeout_s`."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def latest(self) -> MachineFigures:
        """The newest figures; unknown before the first reading and when the newest is over `max_age_s` old."""
        latest = self._latest  # one read: the thread replaces it
        if latest is None or self._clock() - latest[0] > self._max_age_s:
            return MachineFigures()
        return latest[1]

    def _sample(self) -> None:
        reader = None if self._read else MachineReader()
        read = self._read or (reader.read if reader else MachineFigures)
        has_failed = False
        while not self._ended.is_set():
            try:
                self._latest = (self._clock(), read())
            except Exception:
                if not has_failed:
                    log.exception("no machine figures; will go on trying")
                has_failed = True
            self._ended.wait(self._interval_s)
        if reader:
            reader.close()


def _with_children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return [process, *process.children(recursive=True)]
    except psutil.Error:
        return [process]


def _resident_bytes(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.Error:
        return 0  # ended since it was listed
