"""The gate at which the workers of a new engine wait until the device is free."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engine_host.engine.port import EngineArguments, EngineStartError
from engine_host.engine.vllm import adapter, device_gate, releases
from engine_host.engine.vllm.adapter import VllmEngine
from engine_host.engine.vllm.at_device_gate import ENVIRONMENT, HEAD_SIZE, wait
from engine_host.engine.vllm.device_gate import DeviceGate

WORKER = """
from engine_host.engine.vllm.at_device_gate import WaitsAtDeviceGate

class WorkerBase:
    def __init__(self, rank):
        print("at the device", rank, flush=True)

class Worker(WorkerBase):
    pass

Worker.__bases__ = (*Worker.__bases__, WaitsAtDeviceGate)  # as vLLM injects an extension
Worker(rank=0)
"""


def config(**changes: Any) -> Any:
    parallel = {
        "worker_extension_cls": "",
        "distributed_executor_backend": "mp",
        "data_parallel_backend": "mp",
        "data_parallel_size": 1,
        "data_parallel_size_local": 1,
        "world_size": 2,
    }
    return SimpleNamespace(parallel_config=SimpleNamespace(**(parallel | changes)))


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(releases, "installed_version", lambda: "0.32.0")
    monkeypatch.setattr(device_gate, "total_and_free", lambda: (64 << 30, 32 << 30))


@pytest.fixture
def gate() -> Iterator[DeviceGate]:
    gate = DeviceGate()
    yield gate
    gate.close()


def worker(gate: DeviceGate) -> subprocess.Popen[str]:
    with gate.in_environment():
        return subprocess.Popen(
            [sys.executable, "-c", WORKER], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )


def until(condition: Any) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.01)


def test_every_worker_waits_and_goes_on_when_it_opens(gate: DeviceGate) -> None:
    gate.prepare(config(world_size=2))
    first = worker(gate)
    until(lambda: os.fstat(gate._fd).st_size == HEAD_SIZE + 1)
    assert not gate.is_reached, "one of two"
    second = worker(gate)
    until(lambda: gate.is_reached)
    assert first.poll() is None and second.poll() is None
    gate.open()
    late = worker(gate)
    assert [each.communicate(timeout=30)[0] for each in (first, second, late)] == ["at the device 0\n"] * 3
    assert ENVIRONMENT not in os.environ


def test_a_worker_ends_when_the_gate_goes_away_closed(gate: DeviceGate) -> None:
    """As it does with its host."""
    gate.prepare(config(world_size=1))
    waiting = worker(gate)
    until(lambda: gate.is_reached)
    gate.close()
    out, err = waiting.communicate(timeout=30)
    assert (waiting.returncode, out) == (1, "") and "engine-host ended" in err


def test_a_worker_that_comes_when_the_gate_has_gone_leaves_alone_what_is_there_now(tmp_path: Path) -> None:
    """A core that is asked to grow starts workers with the environment of its own start."""
    gate = DeviceGate()
    with gate.in_environment():
        address = os.environ[ENVIRONMENT]
    number = gate._fd
    gate.close()
    wait(address)
    log = tmp_path / "somebody-elses.log"
    log.write_bytes(b"x" * 100)
    file = os.open(log, os.O_RDWR)
    os.dup2(file, number)
    try:
        wait(address)
    finally:
        for each in {number, file}:
            os.close(each)
    assert log.read_bytes() == b"x" * 100


@pytest.mark.parametrize(
    "changes",
    [
        {"worker_extension_cls": "my.Extension"},
        {"distributed_executor_backend": "ray"},
        {"data_parallel_backend": "ray"},
        {"data_parallel_size": 2},
        {"nnodes": 2},
        {"world_size": 32},
    ],
)
def test_where_workers_cannot_wait_the_host_does_before_it_starts_any(
    gate: DeviceGate, changes: dict[str, Any]
) -> None:
    its = config(**changes)
    extension = its.parallel_config.worker_extension_cls
    thread = threading.Thread(target=gate.prepare, args=(its,))
    thread.start()
    until(lambda: gate.is_reached)
    assert thread.is_alive() and its.parallel_config.worker_extension_cls == extension
    gate.open()
    thread.join(30)
    assert not thread.is_alive()


def test_where_workers_can_wait_the_host_goes_on_to_start_them(gate: DeviceGate) -> None:
    its = config(world_size=8, distributed_executor_backend="uni")
    gate.prepare(its)
    module, name = its.parallel_config.worker_extension_cls.rsplit(".", 1)
    assert hasattr(sys.modules[module], name) and not gate.is_reached


def test_a_release_that_is_not_known_waits_without_workers(gate: DeviceGate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(releases, "installed_version", lambda: "0.99.0")
    threading.Thread(target=gate.prepare, args=(config(),)).start()
    until(lambda: gate.is_reached)


# --- the engine that waits at it --------------------------------------------------------------------------------------


class Built:
    """What stands in for vLLM's own part of a start."""

    def __init__(self, fault: Exception | SystemExit | None = None) -> None:
        self._fault = fault
        self.goes_on = threading.Event()
        self.was_given_up = threading.Event()

    def __call__(self, *arguments: Any) -> Any:
        *_, is_given_up, _boards, gate = arguments
        if self._fault is not None:
            raise self._fault
        gate.prepare(config(worker_extension_cls="my.Extension"))
        if is_given_up():
            self.was_given_up.set()
            raise EngineStartError("stopped while starting")
        self.goes_on.set()
        raise EngineStartError("as far as this test goes")


def engine(monkeypatch: pytest.MonkeyPatch, built: Built) -> VllmEngine:
    monkeypatch.setattr(adapter, "import_vllm", lambda: None)
    monkeypatch.setattr(adapter, "build", built)
    return VllmEngine(EngineArguments(engine={}, server={}), lambda names: None)


async def test_an_engine_is_prepared_up_to_the_gate_and_goes_through_it_when_it_is_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    built = Built()
    new = engine(monkeypatch, built)
    async with asyncio.timeout(30):
        await new.prepare(lambda step: None)
        assert not built.goes_on.is_set()
        with pytest.raises(EngineStartError, match="as far as this test goes"):
            await new.start(lambda step: None)
    assert built.goes_on.is_set()


async def test_a_prepared_engine_that_is_stopped_starts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    built = Built()
    new = engine(monkeypatch, built)
    async with asyncio.timeout(30):
        await new.prepare(lambda step: None)
        await new.stop(0.0)
    assert built.was_given_up.is_set() and not built.goes_on.is_set()


@pytest.mark.parametrize("fault", [ValueError("no such model"), SystemExit("no such model")])
async def test_what_fails_on_the_way_to_the_gate_is_told(
    monkeypatch: pytest.MonkeyPatch, fault: Exception | SystemExit
) -> None:
    new = engine(monkeypatch, Built(fault))
    async with asyncio.timeout(30):
        with pytest.raises(EngineStartError, match="no such model"):
            await new.prepare(lambda step: None)
