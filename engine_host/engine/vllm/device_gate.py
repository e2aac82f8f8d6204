"""Where a new engine waits until the device is free, from the host's side.

A reload ends the old engine before the new one may take the device's memory. But most of a start on two cores, and ten
seconds of it anywhere, takes none: the configuration is built, processes start and import vLLM, a core first and then
its workers. So the workers are told to wait just before they touch the device, and the old engine serves until all of
them do.

The gate is a file in memory without a name, which the workers open through this process's descriptor: a lock on it is
the gate, its first byte says whether it is open, and each worker that arrives adds one. When this process dies the
system opens the lock, and the first byte tells them that nobody is there to serve for.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import secrets
import threading
from collections.abc import Iterator
from typing import Any

from engine_host.engine.vllm.at_device_gate import ENVIRONMENT, HEAD_SIZE, IS_OPEN, TOKEN_SIZE
from engine_host.engine.vllm.releases import unknown_release
from engine_host.machine_memory import total_and_free

logger = logging.getLogger(__name__)

_WAITS = "engine_host.engine.vllm.at_device_gate.WaitsAtDeviceGate"
_WAITING_BYTES = 1 << 30
"""What a process may hold that has imported vLLM and waits."""


class DeviceGate:
    """Of one engine, for one start. Closed at first."""

    def __init__(self) -> None:
        self._fd = os.memfd_create("engine-host-gate", os.MFD_CLOEXEC)
        self._token = secrets.token_bytes(TOKEN_SIZE)
        os.write(self._fd, b"\0" + self._token)
        fcntl.flock(self._fd, fcntl.LOCK_EX)
        self._workers: int | None = None
        """How many will come; None while that is not known, and when they are not asked to."""
        self._is_host_waiting = False
        self._go_on = threading.Event()

    def prepare(self, config: Any) -> None:
        """Have the workers of this `VllmConfig` wait. Where they cannot, wait here until `open` or `close`, before
        there are any."""
        if (why_not := _why_not(config)) is None:
            config.parallel_config.worker_extension_cls = _WAITS
            self._workers = _workers(config)
            return
        logger.info("the new engine starts no process before the device is free: %s", why_not)
        self._is_host_waiting = True
        self._go_on.wait()

    @contextlib.contextmanager
    def in_environment(self) -> Iterator[None]:
        """Around the start of the engine's processes, which inherit it."""
        os.environ[ENVIRONMENT] = f"/proc/{os.getpid()}/fd/{self._fd} {self._token.hex()}"
        try:
            yield
        finally:
            os.environ.pop(ENVIRONMENT, None)

    @property
    def is_reached(self) -> bool:
        """Nothing more of the start can be done before `open`."""
        if self._is_host_waiting:
            return True
        if self._workers is None or self._fd < 0:
            return False
        return os.fstat(self._fd).st_size - HEAD_SIZE >= self._workers

    def open(self) -> None:
        """Whoever waits goes on, and whoever comes later does not wait."""
        os.pwrite(self._fd, IS_OPEN, 0)
        fcntl.flock(self._fd, fcntl.LOCK_UN)
        self._go_on.set()

    def close(self) -> None:
        """The engine has started, or ends. A worker that still waits ends too."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        self._go_on.set()


def _workers(config: Any) -> int:
    parallel = config.parallel_config
    return int(parallel.world_size * parallel.data_parallel_size)


def _why_not(config: Any) -> str | None:
    if (unknown := unknown_release()) is not None:
        return f"where a worker {unknown}"
    parallel = config.parallel_config
    if parallel.worker_extension_cls:
        return f"its workers have an extension of their own, {parallel.worker_extension_cls}"
    if (backend := parallel.distributed_executor_backend) not in (None, "mp", "uni"):
        return f"its workers are started by {backend}"
    if parallel.data_parallel_backend == "ray" or getattr(parallel, "nnodes", 1) > 1:
        return "it has workers on other machines"
    if parallel.data_parallel_size != parallel.data_parallel_size_local:
        return "it has cores on other machines or in other hosts"
    needed = (_workers(config) + parallel.data_parallel_size) * _WAITING_BYTES
    if (free := total_and_free()[1]) < needed:
        return f"its processes may take {needed >> 30} GiB of the machine's memory, {free / (1 << 30):.1f} are free"
    return None
