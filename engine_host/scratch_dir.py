"""A directory for what the processes of one host put down for each other: the files of their sockets.

Made before the host and removed after it, whatever ended it: a killed process removes nothing. It is below the system's
directory for temporary files because the path of a socket is short, and a state directory need not be.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from pathlib import Path

from engine_host.protocol.sockets import MAX_SOCKET_PATH_BYTES

_PREFIX = "engine-host-"
_NAME_CHARS = 8
"""What `tempfile` adds to a prefix."""
_BELOW_BYTES = len("/") + _NAME_CHARS + len("/") + 36
"""A directory of each engine, and in it a socket named by a UUID, as vLLM does."""


def make_scratch_dir() -> Path | None:
    """A fresh one, 0700, where an operator's `VLLM_RPC_BASE_PATH` says, else where temporary files are; `None` when
    none of these can be written and is short enough."""
    for parent in (os.environ.get("VLLM_RPC_BASE_PATH"), tempfile.gettempdir(), "/tmp"):
        if not parent:
            continue
        longest = len(os.fsencode(parent)) + len("/") + len(_PREFIX) + _NAME_CHARS + _BELOW_BYTES
        if longest <= MAX_SOCKET_PATH_BYTES:
            try:
                return Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
            except OSError:
                continue
    return None


def make_dir_for_sockets(scratch_dir: Path) -> Path | None:
    """A fresh one in `scratch_dir`, which is made again if it is gone: whatever clears up old temporary files takes it
    from a host that runs for weeks. `None` when that is not possible, or somebody else has taken its name."""
    try:
        with contextlib.suppress(FileExistsError):
            scratch_dir.mkdir(mode=0o700)
        found = scratch_dir.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            return None
        return Path(tempfile.mkdtemp(prefix="", dir=scratch_dir))
    except OSError:
        return None
