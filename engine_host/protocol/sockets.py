"""Where control sockets live, the same answer for host and console."""

from __future__ import annotations

import os
from pathlib import Path

MAX_SOCKET_PATH_BYTES = 107
"""Linux: sun_path holds 108 bytes with its terminator. A longer path fails in bind() with a misleading message."""


QUIT_STOPS_HOST = "VLLM_CONSOLE_QUIT_STOPS_HOST"
"""Set in the environment of a console whose starter stops the host when it ends (`make demo`), so that it says so."""


def runtime_dir() -> Path:
    """`$VLLM_CONSOLE_RUNTIME_DIR`, else `vllm-console` in `$XDG_RUNTIME_DIR`, else `/tmp/vllm-console-UID`."""
    if chosen := os.environ.get("VLLM_CONSOLE_RUNTIME_DIR"):
        return Path(chosen)
    if xdg := os.environ.get("XDG_RUNTIME_DIR"):
        return Path(xdg) / "vllm-console"
    return Path(f"/tmp/vllm-console-{os.getuid()}")


def default_socket(port: int) -> Path:
    """One socket a host; named by its API port, which no two hosts on a machine share."""
    return runtime_dir() / f"engine-host-{port}.sock"
