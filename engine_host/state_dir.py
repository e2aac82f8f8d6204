"""The host's state directory: engine log, audit log, start forecasts. One a host, private to its user."""

from __future__ import annotations

import os
from pathlib import Path

from engine_host.protocol.errors import OperatorError


def default_state_dir(port: int) -> Path:
    """`$XDG_STATE_HOME` or `~/.local/state`, then `vllm-console/engine-host-PORT`."""
    base = os.environ.get("XDG_STATE_HOME")
    root = Path(base) if base else Path.home() / ".local" / "state"
    return root / "vllm-console" / f"engine-host-{port}"


def prepare_state_dir(chosen: Path | None, port: int) -> Path:
    """Create it (0700) if needed and make sure that it can be written. Raises `OperatorError`."""
    directory = (chosen or default_state_dir(port)).expanduser().absolute()
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        probe = directory / f".probe-{os.getpid()}"
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        raise OperatorError(
            f"the state directory {directory} cannot be used: {error.strerror or error}",
            "Expected a directory that this user can write; choose one with --state-dir.",
        ) from None
    return directory
