"""A directory for what the processes of one host put down for each other: the files of their sockets.

Made before the host and removed after it, whatever ended it: a killed process removes nothing. It is below the system's
directory for temporary files because the path of a socket is short, and a state directory need not be.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from engine_host.protocol.sockets import MAX_SOCKET_PATH_BYTES

_PREFIX = "engine-host-"
_NAME_CHARS = 8
"""What `tempfile` adds to a prefix."""
_BELOW_BYTES = len("/") + _NAME_CHARS + len("/") + 36
"""A directory of each engine, and in it a socket named by a UUID, as vLLM does."""


def make_scratch_dir() -> Path | None:
    """A fresh one, 0700; `None` when no directory for temporary files can be written or is short enough."""
    for parent in dict.fromkeys((tempfile.gettempdir(), "/tmp")):
        longest = len(os.fsencode(parent)) + len("/") + len(_PREFIX) + _NAME_CHARS + _BELOW_BYTES
        if longest <= MAX_SOCKET_PATH_BYTES:
            try:
                return Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
            except OSError:
                continue
    return None
