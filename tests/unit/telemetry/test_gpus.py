"""GPU figures from an NVML that answers, half answers, and does not answer."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from engine_host.telemetry import gpus
from engine_host.telemetry.gpus import NVML_RETRY_S, GpuReader


class NVMLError(Exception):
    pass


class FakeNvml:
    """Stands for the `pynvml` module. `devices` and slices are plain dicts; a missing key is "not supported"."""

    NVMLError = NVMLError
    NVML_TEMPERATURE_GPU = 0

    def __init__(self, *devices: dict[str, Any]) -> None:
        self.devices = list(devices)
        self.has_driver = True
        self.inits = 0

    def nvmlInit(self) -> None:
        self.inits += 1
        if not self.has_driver:
            raise NVMLError("Driver Not Loaded")

    def nvmlShutdown(self) -> None:
        pass

    def nvmlDeviceGetCount(self) -> int:
        if not self.has_driver:
            raise NVMLError("Uninitialized")
        return len(self.devices)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> dict[str, Any]:
        if "lost" in self.devices[index]:
            raise NVMLError("GPU is lost")
        return self.devices[index]

    def nvmlDeviceGetMigDeviceHandleByIndex(self, device: dict[str, Any], number: int) -> dict[str, Any]:
        if number not in device["slices"]:
            raise NVMLError("Not Found")
        found: dict[str, Any] = device["slices"][number]
        return found

    def __getattr__(self, name: str) -> Callable[..., Any]:
        keys = {
            "nvmlDeviceGetName": "name",
            "nvmlDeviceGetMigMode": "mig",
            "nvmlDeviceGetMaxMigDeviceCount": "max_slices",
            "nvmlDeviceGetMemoryInfo": "memory",
            "nvmlDeviceGetUtilizationRates": "utilization",
            "nvmlDeviceGetPowerUsage": "power_mw",
            "nvmlDeviceGetTemperature": "temperature",
            "nvmlDeviceGetComputeRunningProcesses": "processes",
        }
        key = keys[name]

        def ask(device: dict[str, Any], *more: Any) -> Any:
            if key not in device:
                raise NVMLError("Not Supported")
            return device[key]

        return ask


def memory(used: int, total: int) -> SimpleNamespace:
    return SimpleNamespace(used=used, total=total)


H200 = {
    "name": "NVIDIA H200",
    "mig": [0, 0],
    "memory": memory(131, 141),
    "utilization": SimpleNamespace(gpu=97, memory=50),
    "power_mw": 612_500,
    "temperature": 61,
    "processes": [
        SimpleNamespace(pid=os.getpid(), usedGpuMemory=100),
        SimpleNamespace(pid=(1 << 22) + 1, usedGpuMemory=None),
    ],
}
MIG = {
    "name": b"NVIDIA H200",
    "mig": [1, 1],
    "max_slices": 7,
    "memory": memory(131, 141),
    "utilization": SimpleNamespace(gpu=97, memory=50),
    "power_mw": 612_500,
    "slices": {
        0: {"name": "NVIDIA H200 MIG 1g.18gb", "memory": memory(10, 18), "processes": H200["processes"]},
        3: {"name": "NVIDIA H200", "utilization": SimpleNamespace(gpu=50, memory=1)},
    },
}


def read(nvml: FakeNvml, own_pids: set[int] | None = None) -> list[Any]:
    return list(GpuReader(lambda: nvml).read(own_pids or set()))


def test_a_gpu_is_read_in_fractions_watts_and_bytes() -> None:
    (gpu,) = read(FakeNvml(H200), {os.getpid()})
    assert (gpu.index, gpu.name, gpu.utilization) == (0, "NVIDIA H200", 0.97)
    assert (gpu.memory_used_bytes, gpu.memory_total_bytes) == (131, 141)
    assert (gpu.power_w, gpu.temperature_c) == (612.5, 61.0)


def test_its_processes_are_told_apart() -> None:
    (gpu,) = read(FakeNvml(H200), {os.getpid()})
    ours, other = gpu.processes
    assert (ours.is_ours, ours.memory_bytes) == (True, 100)
    assert ours.name != "unknown"
    assert (other.is_ours, other.memory_bytes, other.name) == (False, None, "unknown")


def test_what_a_gpu_does_not_tell_is_unknown_and_the_rest_is_known() -> None:
    (gpu,) = read(FakeNvml({"name": "Tesla", "memory": memory(1, 2)}))
    assert (gpu.name, gpu.memory_total_bytes) == ("Tesla", 2)
    assert (gpu.utilization, gpu.power_w, gpu.temperature_c, gpu.processes) == (None, None, None, [])


def test_a_gpu_that_tells_nothing_is_still_a_row() -> None:
    (gpu,) = read(FakeNvml({}))
    assert (gpu.name, gpu.memory_used_bytes, gpu.utilization) == ("GPU 0", None, None)


def test_a_lost_gpu_does_not_hide_the_others() -> None:
    lost, good = read(FakeNvml({"lost": True}, H200))
    assert (lost.name, lost.memory_total_bytes) == ("GPU 0 (lost)", None)
    assert (good.index, good.name) == (1, "NVIDIA H200")


def test_a_mig_slice_has_its_own_memory_and_no_utilization() -> None:
    whole, partial = read(FakeNvml(MIG), {os.getpid()})
    assert (whole.name, whole.memory_used_bytes, whole.memory_total_bytes) == ("NVIDIA H200 MIG 1g.18gb", 10, 18)
    assert (whole.utilization, whole.power_w) == (None, None)
    assert whole.processes[0].is_ours
    assert partial.name == "NVIDIA H200 MIG slice 3"
    assert (partial.memory_total_bytes, partial.utilization) == (None, None)


def test_a_mig_parent_without_visible_slices_shows_no_figures_of_its_own() -> None:
    (gpu,) = read(FakeNvml({**MIG, "slices": {}}))
    assert "MIG" in gpu.name
    assert (gpu.memory_total_bytes, gpu.utilization, gpu.power_w) == (None, None, None)


def test_without_the_library_there_are_no_gpus() -> None:
    def absent() -> Any:
        raise ImportError("no pynvml")

    assert GpuReader(absent).read() == ()


def test_an_absent_driver_is_asked_again_only_after_a_while() -> None:
    nvml = FakeNvml(H200)
    nvml.has_driver = False
    now = 1_000.0
    reader = GpuReader(lambda: nvml, clock=lambda: now)
    assert (reader.read(), reader.read(), nvml.inits) == ((), (), 1)
    nvml.has_driver = True
    assert reader.read() == ()
    now += NVML_RETRY_S
    assert len(reader.read()) == 1


def test_a_driver_that_goes_away_is_no_crash_and_comes_back() -> None:
    nvml = FakeNvml(H200)
    now = 1_000.0
    reader = GpuReader(lambda: nvml, clock=lambda: now)
    assert len(reader.read()) == 1
    nvml.has_driver = False
    assert reader.read() == ()
    nvml.has_driver = True
    now += NVML_RETRY_S
    assert len(reader.read()) == 1


def test_the_library_has_every_function_that_is_asked_for() -> None:
    pynvml = pytest.importorskip("pynvml")
    source = inspect.getsource(gpus)
    names = set(re.findall(r"nvml\.(nvml\w+|NVML\w+)", source))
    assert len(names) > 10
    assert [name for name in sorted(names) if not hasattr(pynvml, name)] == []


def test_the_real_library_is_no_crash_whatever_the_machine_has() -> None:
    pytest.importorskip("pynvml")
    reader = GpuReader()
    assert all(gpu.name for gpu in reader.read({os.getpid()}))
    reader.close()
