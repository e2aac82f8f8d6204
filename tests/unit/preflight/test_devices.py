from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from engine_host.preflight import devices
from engine_host.preflight.devices import Device, choose_gpus, read_devices, read_machine
from engine_host.protocol.snapshot import Gpu, GpuProcess
from tests.unit.preflight.facts import GIB

FOUR = [Gpu(index=index, name="NVIDIA A100") for index in range(4)]


def chosen(count: int, visible: str | None, gpus: list[Gpu] = FOUR) -> list[int] | None:
    found = choose_gpus(gpus, count, {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible})
    return None if found is None else [gpu.index for gpu in found]


def test_gpus_are_taken_in_order_or_as_the_environment_orders_them() -> None:
    assert chosen(2, None) == [0, 1]
    assert chosen(2, "3,1,0") == [3, 1]
    assert chosen(1, " 2 ") == [2]


def test_fewer_gpus_than_asked_for_are_no_answer() -> None:
    assert chosen(5, None) is None
    assert chosen(2, "3") is None
    assert chosen(1, "") is None
    assert chosen(1, "9") is None


def test_ids_that_are_no_numbers_crash_nothing() -> None:
    """Field case 22."""
    assert chosen(1, "MIG-4fe2c3a1-0000-0000-0000-000000000000") is None
    assert chosen(4, "GPU-1,GPU-2,GPU-3,GPU-4") == [0, 1, 2, 3]
    assert chosen(1, "0", [Gpu(index=0, name="A100 MIG 1g.10gb")]) is None


def test_the_machine_is_smaller_inside_a_control_group(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("1000000\n")
    (tmp_path / "memory.current").write_text("700000\n")
    (tmp_path / "memory.stat").write_text("anon 1\ninactive_file 200000\n")
    machine = read_machine(cgroup=tmp_path)
    assert machine.total_bytes == 1_000_000
    assert machine.free_bytes == 500_000


def test_a_control_group_without_limit_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("max\n")
    assert read_machine(cgroup=tmp_path).total_bytes > 1 << 28


def on_a_gpu(used_gib: float, *processes: GpuProcess) -> Device:
    gpu = Gpu(
        index=0,
        name="NVIDIA A100",
        memory_used_bytes=int(used_gib * GIB),
        memory_total_bytes=80 * GIB,
        processes=list(processes),
    )
    device = devices._from_gpu(gpu, {10, 11})
    assert device is not None
    return device


def holding(pid: int, gib: float | None, name: str = "VLLM::Worker_TP0") -> GpuProcess:
    return GpuProcess(pid=pid, name=name, memory_bytes=None if gib is None else int(gib * GIB))


def test_the_running_engine_gives_back_what_its_processes_hold() -> None:
    device = on_a_gpu(62, holding(10, 40), holding(11, 2), holding(99, 20, "python3"))
    assert device.given_back_bytes == 42 * GIB
    assert "python3 (pid 99) 20 GiB" in [str(holder) for holder in device.holders]


def test_a_gpu_that_the_running_engine_is_not_on_gives_nothing_back() -> None:
    assert on_a_gpu(20, holding(99, 20, "python3")).given_back_bytes == 0
    assert on_a_gpu(0.4).given_back_bytes == 0


@pytest.mark.parametrize(
    "processes", [(), (holding(4242, 40, "unknown"),), (holding(10, None),)], ids=["hidden", "renumbered", "no sizes"]
)
def test_what_the_driver_does_not_tell_is_unknown(processes: tuple[GpuProcess, ...]) -> None:
    assert on_a_gpu(40, *processes).given_back_bytes is None


def test_without_a_running_engine_nothing_is_given_back() -> None:
    device = devices._from_gpu(
        Gpu(index=0, name="A100", memory_used_bytes=40 * GIB, memory_total_bytes=80 * GIB), set()
    )
    assert device is not None and device.given_back_bytes == 0


def test_on_cpu_an_engine_gives_back_the_pages_that_nobody_else_has() -> None:
    """Its own and those of its children."""
    holds = "import subprocess, sys; kept = bytearray(90_000_000); "
    parent = f"{holds}subprocess.run([sys.executable, '-c', {holds + 'sys.stdin.read()'!r}])"
    process = subprocess.Popen([sys.executable, "-c", parent], stdin=subprocess.PIPE)
    try:
        deadline = time.monotonic() + 10
        while (given := machine_with(process.pid).given_back_bytes or 0) < 180_000_000:
            assert time.monotonic() < deadline, given
            time.sleep(0.05)
        assert given < 300_000_000
    finally:
        process.communicate()
    assert machine_with(process.pid).given_back_bytes == 0


def machine_with(engine_pid: int) -> Device:
    found = read_devices("cpu", 1, engine_pids=[engine_pid])
    assert found is not None
    return found[0]


def test_the_largest_processes_of_the_machine_are_named() -> None:
    found = read_devices("cpu", 1)
    assert found is not None
    (machine,) = found
    sizes = [holder.held_bytes or 0 for holder in machine.holders]
    assert sizes == sorted(sizes, reverse=True) and 0 < len(sizes) <= 3


def test_without_a_driver_nothing_is_known_of_gpus() -> None:
    if Path("/proc/driver/nvidia").exists():
        pytest.skip("this machine has a GPU")
    assert read_devices("cuda", 1) is None
