"""Figures of the GPUs, read through NVML.

Nothing here may fail because of the hardware: what the driver cannot or may not tell is `None`, field by field. A MIG
slice has a memory of its own and no utilisation; its parent's figures are never shown for it (they belong to all
slices together). Every call may block, for ever once a GPU has fallen off the bus: `machine` calls from a thread.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection
from typing import Any, TypeVar

import psutil

from engine_host.protocol.snapshot import Gpu, GpuProcess

log = logging.getLogger(__name__)

NVML_RETRY_S = 60.0
"""Between attempts to reach a driver that did not answer: it may be loaded, or reloaded, later."""

T = TypeVar("T")


class GpuReader:
    """Reads all GPUs through NVML; without the library or a driver there are none.

    `load` imports the library (`pynvml` of nvidia-ml-py), which is absent on machines without NVIDIA hardware.
    """

    def __init__(self, load: Callable[[], Any] | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._load = load or _load_pynvml
        self._clock = clock
        self._nvml: Any = None
        self._retry_at = 0.0

    def read(self, own_pids: Collection[int] = ()) -> tuple[Gpu, ...]:
        """The GPUs, or in MIG mode their slices, in NVML's order."""
        if self._nvml is None and not self._connect():
            return ()
        nvml = self._nvml
        try:
            count = nvml.nvmlDeviceGetCount()
        except nvml.NVMLError as error:
            log.warning("NVML lost its driver: %s", error)
            self.close()
            self._retry_at = self._clock() + NVML_RETRY_S
            return ()
        return tuple(gpu for index in range(count) for gpu in self._read_device(index, own_pids))

    def close(self) -> None:
        if self._nvml is not None:
            self._ask(self._nvml.nvmlShutdown)
            self._nvml = None

    def _connect(self) -> bool:
        if self._clock() < self._retry_at:
            return False
        self._retry_at = self._clock() + NVML_RETRY_S
        try:
            nvml = self._load()
        except ImportError:
            return False
        try:
            nvml.nvmlInit()
        except nvml.NVMLError as error:
            log.info("no GPU figures: %s", error)
            return False
        self._nvml = nvml
        return True

    def _ask(self, question: Callable[..., T], *arguments: Any) -> T | None:
        """One NVML call; `None` for whatever it cannot or may not tell."""
        try:
            return question(*arguments)
        except self._nvml.NVMLError:
            return None

    def _read_device(self, index: int, own_pids: Collection[int]) -> list[Gpu]:
        nvml = self._nvml
        device = self._ask(nvml.nvmlDeviceGetHandleByIndex, index)
        if device is None:
            return [Gpu(index=index, name=f"GPU {index} (lost)")]
        mig_mode = self._ask(nvml.nvmlDeviceGetMigMode, device)
        if mig_mode and mig_mode[0]:
            return self._read_slices(index, device, own_pids)
        name = self._name(device) or f"GPU {index}"
        used, total = self._memory(device)
        utilization = self._ask(nvml.nvmlDeviceGetUtilizationRates, device)
        power_mw = self._ask(nvml.nvmlDeviceGetPowerUsage, device)
        temperature_c = self._ask(nvml.nvmlDeviceGetTemperature, device, nvml.NVML_TEMPERATURE_GPU)
        return [
            Gpu(
                index=index,
                name=name,
                utilization=None if utilization is None else utilization.gpu / 100,
                memory_used_bytes=used,
                memory_total_bytes=total,
                power_w=None if power_mw is None else power_mw / 1000,
                temperature_c=None if temperature_c is None else float(temperature_c),
                processes=self._processes(device, own_pids),
            )
        ]

    def _read_slices(self, index: int, parent: Any, own_pids: Collection[int]) -> list[Gpu]:
        nvml = self._nvml
        parent_name = self._name(parent) or f"GPU {index}"
        slices = []
        for number in range(self._ask(nvml.nvmlDeviceGetMaxMigDeviceCount, parent) or 0):
            part = self._ask(nvml.nvmlDeviceGetMigDeviceHandleByIndex, parent, number)
            if part is None:
                continue  # slots are numbered up to the maximum, not up to what is made
            name = self._name(part) or parent_name
            used, total = self._memory(part)
            slices.append(
                Gpu(
                    index=index,
                    name=name if "MIG" in name else f"{name} MIG slice {number}",
                    memory_used_bytes=used,
                    memory_total_bytes=total,
                    processes=self._processes(part, own_pids),
                )
            )
        return slices or [Gpu(index=index, name=f"{parent_name} MIG (no slice visible)")]

    def _name(self, device: Any) -> str | None:
        name = self._ask(self._nvml.nvmlDeviceGetName, device)
        return name.decode(errors="replace") if isinstance(name, bytes) else name

    def _memory(self, device: Any) -> tuple[int | None, int | None]:
        memory = self._ask(self._nvml.nvmlDeviceGetMemoryInfo, device)
        return (None, None) if memory is None else (int(memory.used), int(memory.total))

    def _processes(self, device: Any, own_pids: Collection[int]) -> list[GpuProcess]:
        found = self._ask(self._nvml.nvmlDeviceGetComputeRunningProcesses, device) or []
        return [
            GpuProcess(
                pid=process.pid,
                name=_process_name(process.pid),
                memory_bytes=process.usedGpuMemory,
                is_ours=process.pid in own_pids,
            )
            for process in found
        ]


def _load_pynvml() -> Any:
    import pynvml

    return pynvml


def _process_name(pid: int) -> str:
    try:
        return psutil.Process(pid).name()
    except psutil.Error:
        return "unknown"  # of another PID namespace, or gone
