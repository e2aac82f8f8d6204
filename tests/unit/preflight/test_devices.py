from __future__ import annotations

from pathlib import Path

import pytest

from engine_host.preflight.devices import choose_gpus, read_devices, read_machine
from engine_host.protocol.snapshot import Gpu

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


def test_the_largest_processes_of_the_machine_are_named() -> None:
    devices = read_devices("cpu", 1)
    assert devices is not None
    (machine,) = devices
    sizes = [holder.held_bytes or 0 for holder in machine.holders]
    assert sizes == sorted(sizes, reverse=True) and 0 < len(sizes) <= 3


def test_without_a_driver_nothing_is_known_of_gpus() -> None:
    if Path("/proc/driver/nvidia").exists():
        pytest.skip("this machine has a GPU")
    assert read_devices("cuda", 1) is None
