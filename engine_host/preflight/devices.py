"""The memory that an engine would find: of the GPUs it would get, or of the machine when it runs on CPU.

Blocks (NVML may hang on a lost GPU): called from a thread.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from engine_host.machine_memory import CGROUP, total_and_free
from engine_host.protocol.snapshot import Gpu
from engine_host.telemetry.gpus import GpuReader

from .findings import amount

IDLE_GPU_BYTES = 1 << 30
"""Less is in use on a GPU that no engine is on: the driver's own, and a desktop."""

_MOST_HOLDERS = 3


@dataclass(frozen=True)
class Holder:
    """A process that holds memory of a device."""

    pid: int
    name: str
    held_bytes: int | None
    is_orphan: bool = False
    """An engine core whose host is gone."""

    def __str__(self) -> str:
        size = f" {amount(self.held_bytes)}" if self.held_bytes is not None else ""
        orphan = ", left behind by a host that is gone" if self.is_orphan else ""
        return f"{self.name} (pid {self.pid}{orphan}){size}"


@dataclass(frozen=True)
class Device:
    name: str
    total_bytes: int
    free_bytes: int
    holders: Sequence[Holder] = ()
    """Other programs on it, largest first; the running host's own are left out."""
    given_back_bytes: int | None = 0
    """What the running engine holds of it, and frees when it stops; None when nothing tells."""


def read_devices(
    kind: str, count: int, own_pids: Collection[int] = (), engine_pids: Collection[int] = ()
) -> list[Device] | None:
    """The `count` devices that an engine of `kind` would use; None when they cannot be told. `engine_pids`: of the
    running engine; its children count with it."""
    engine = _with_children(engine_pids)
    if kind == "cpu":
        return [read_machine(own_pids, engine)]
    reader = GpuReader()
    try:
        gpus = choose_gpus(reader.read(own_pids), count, os.environ)
    finally:
        reader.close()
    if gpus is None:
        return None
    devices = [_from_gpu(gpu, {process.pid for process in engine}) for gpu in gpus]
    return None if any(device is None for device in devices) else [device for device in devices if device is not None]


def choose_gpus(gpus: Sequence[Gpu], count: int, environment: Mapping[str, str]) -> list[Gpu] | None:
    """The GPUs that CUDA would number 0 to `count` - 1; None when the environment names them in a way that the
    driver's list does not (a UUID, a MIG slice), or when there are fewer."""
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        chosen = list(gpus)
    else:
        words = [word.strip() for word in visible.split(",") if word.strip()]
        if not all(word.isdecimal() for word in words):
            # Only an unambiguous case is answered: as many as are asked for, and no more.
            return list(gpus) if len(words) == len(gpus) == count else None
        by_index = {gpu.index: gpu for gpu in gpus if not _is_slice(gpu)}
        chosen = [by_index[int(word)] for word in words if int(word) in by_index]
    return chosen[:count] if len(chosen) >= count else None


def _is_slice(gpu: Gpu) -> bool:
    return "MIG" in gpu.name


def _from_gpu(gpu: Gpu, engine_pids: Collection[int]) -> Device | None:
    if gpu.memory_total_bytes is None or gpu.memory_used_bytes is None:
        return None
    others = sorted((p for p in gpu.processes if not p.is_ours), key=lambda p: -(p.memory_bytes or 0))
    return Device(
        name=f"GPU {gpu.index} ({gpu.name})",
        total_bytes=gpu.memory_total_bytes,
        free_bytes=max(0, gpu.memory_total_bytes - gpu.memory_used_bytes),
        holders=[Holder(p.pid, p.name, p.memory_bytes, _is_orphan(p.pid, p.name)) for p in others],
        given_back_bytes=_held_on(gpu, engine_pids),
    )


def _held_on(gpu: Gpu, engine_pids: Collection[int]) -> int | None:
    """What the engine holds of a GPU. In a container the driver numbers processes as its host does, or hides them: then
    nobody knows whose the memory is."""
    if not engine_pids:
        return 0
    ours = [process.memory_bytes for process in gpu.processes if process.pid in engine_pids]
    if None in ours:
        return None
    if not ours and (any(process.name == "unknown" for process in gpu.processes) or not gpu.processes):
        return 0 if (gpu.memory_used_bytes or 0) < IDLE_GPU_BYTES else None
    return sum(size for size in ours if size is not None)


def read_machine(
    own_pids: Collection[int] = (), engine: Sequence[psutil.Process] = (), cgroup: Path = CGROUP
) -> Device:
    """The machine's memory within the limit of its control group, as vLLM's CPU worker takes it."""
    total, free = total_and_free(cgroup)
    return Device(
        name="this machine",
        total_bytes=total,
        free_bytes=free,
        holders=_largest(own_pids),
        given_back_bytes=_unshared(engine),
    )


def _unshared(processes: Sequence[psutil.Process]) -> int | None:
    """What is freed when these processes end: pages that nobody else has."""
    total = 0
    for process in processes:
        try:
            total += process.memory_full_info().uss
        except psutil.NoSuchProcess:
            continue
        except psutil.AccessDenied:
            return None
    return total


def _with_children(pids: Collection[int]) -> list[psutil.Process]:
    found: dict[int, psutil.Process] = {}
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            found |= {each.pid: each for each in (process, *process.children(recursive=True))}
    return list(found.values())


def _largest(own_pids: Collection[int]) -> list[Holder]:
    found: list[Holder] = []
    for process in psutil.process_iter(["pid", "name", "memory_info"]):
        resident = process.info["memory_info"]
        if resident is not None and process.pid not in own_pids:
            found.append(Holder(process.pid, process.info["name"] or "?", resident.rss))
    found.sort(key=lambda holder: -(holder.held_bytes or 0))
    return [
        Holder(holder.pid, holder.name, holder.held_bytes, _is_orphan(holder.pid, holder.name))
        for holder in found[:_MOST_HOLDERS]
    ]


def _is_orphan(pid: int, name: str) -> bool:
    """An engine core (vLLM names the process so) that init has adopted: its host was killed."""
    if "VLLM::" not in name:
        return False
    try:
        return psutil.Process(pid).ppid() == 1
    except psutil.Error:
        return False
