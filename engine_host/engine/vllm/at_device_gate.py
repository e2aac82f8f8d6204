"""In a worker of a new engine: it waits here until the device is free; see `device_gate`.

vLLM makes a class that it is given as an extension a base of the worker's own. An extension is for more methods; this
one has none, and is there at the one moment after the worker's modules are imported and before it does anything.
"""

from __future__ import annotations

import fcntl
import os
from typing import Any

ENVIRONMENT = "ENGINE_HOST_DEVICE_GATE"
"""The path of the gate. Not part of vLLM's configuration, which is hashed into the names of its compile caches."""
IS_OPEN = b"\1"


class WaitsAtDeviceGate:
    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        wait(os.environ[ENVIRONMENT])
        return super().__new__(cls)


def wait(path: str) -> None:
    """Until the gate at `path` is open. Raises `SystemExit` when whoever had it is gone, `OSError` for a wrong path."""
    gate = os.open(path, os.O_RDWR | os.O_APPEND)
    try:
        os.write(gate, b"w")
        fcntl.flock(gate, fcntl.LOCK_SH)
        if os.pread(gate, 1, 0) != IS_OPEN:
            raise SystemExit("engine-host ended before this engine was let at the device")
    finally:
        os.close(gate)
