"""In a worker of a new engine: it waits here until the device is free; see `device_gate`.

vLLM makes a class that it is given as an extension a base of the worker's own. An extension is for more methods; this
one has none, and is there at the one moment after the worker's modules are imported and before it does anything.
"""

from __future__ import annotations

import fcntl
import os
from typing import Any

ENVIRONMENT = "ENGINE_HOST_DEVICE_GATE"
"""Path and token of the gate. No part of vLLM's configuration, which is hashed into the names of its compile caches."""
IS_OPEN = b"\1"
TOKEN_SIZE = 16
HEAD_SIZE = 1 + TOKEN_SIZE
"""Whether it is open; a token at random, since the path leads to another file once the gate has gone. Behind it a byte
for each worker that has arrived."""


class WaitsAtDeviceGate:
    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        wait(os.environ[ENVIRONMENT])
        return super().__new__(cls)


def wait(address: str) -> None:
    """Until the gate there is open; not at all where there is none any more, since the engine of a worker that comes so
    late has long been let at the device. Raises `SystemExit` when whoever had the gate goes while this waits."""
    path, _, token = address.partition(" ")
    try:
        gate = os.open(path, os.O_RDWR | os.O_APPEND)
    except OSError:
        return
    try:
        if not _is_gate(gate, bytes.fromhex(token)):
            return
        os.write(gate, b"w")
        fcntl.flock(gate, fcntl.LOCK_SH)
        if os.pread(gate, 1, 0) != IS_OPEN:
            raise SystemExit("engine-host ended before this engine was let at the device")
    finally:
        os.close(gate)


def _is_gate(file: int, token: bytes) -> bool:
    try:
        return os.pread(file, TOKEN_SIZE, 1) == token
    except OSError:
        return False
