"""The host's state directory: engine log, audit log, start forecasts. One a host, private to its user.

Two hosts in one directory would write one log and rotate each other's audit trail, and prompts may stand in the log:
so it is locked by its host, and refused when others may look into it.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from engine_host.lock_file import LockFile
from engine_host.private_directory import prepare_directory
from engine_host.protocol.errors import OperatorError

LOCK_FILE = "host.lock"

HANDOVER_S = 2.0
"""Waited for a host that has just been stopped: it lets go of its directory a moment after its socket is gone."""

_POLL_S = 0.05
_ELSEWHERE = "choose another directory with --state-dir"


def state_root() -> Path:
    """`vllm-console` in `$XDG_STATE_HOME` (which counts only when absolute, as its specification says), else in
    `~/.local/state`."""
    base = os.environ.get("XDG_STATE_HOME")
    root = Path(base) if base and Path(base).is_absolute() else Path.home() / ".local" / "state"
    return root / "vllm-console"


def default_state_dir(port: int) -> Path:
    return state_root() / f"engine-host-{port}"


@contextlib.contextmanager
def claimed_state_dir(chosen: Path | None, port: int, label: str = "") -> Iterator[Path]:
    """The directory, made (0700) or checked, and this process's alone until the end. Raises `OperatorError`.

    What was made and nothing was put into is removed again: a host that was refused leaves nothing behind.
    `label`: what this host runs, for the message that a second host gets.
    """
    directory = _resolved(chosen or default_state_dir(port))
    made = [path for path in (directory, *directory.parents) if not path.exists()]
    lock = LockFile(directory / LOCK_FILE, label)
    try:
        try:
            _take(lock, directory)
            _probe(directory)
        except OSError as error:
            fact = f"the state directory {directory} cannot be written: {error.strerror or error}"
            raise OperatorError(fact, _ELSEWHERE) from None
        yield directory
    finally:
        if made:
            _unmake(made, lock)
        lock.release()


def _resolved(directory: Path) -> Path:
    """A link of the operator's own is no danger: what is checked is where it leads."""
    try:
        return directory.expanduser().resolve()
    except (OSError, RuntimeError) as error:  # links in a circle, or ~ of a user that there is not
        raise OperatorError(f"the state directory {directory} cannot be found: {error}", _ELSEWHERE) from None


def _unmake(made: Sequence[Path], lock: LockFile) -> None:
    """Remove the directories, innermost first, as far as nobody has put something there."""
    with contextlib.suppress(OSError):
        if [path.name for path in made[0].iterdir()] == [LOCK_FILE]:
            lock.remove()
        for directory in made:
            directory.rmdir()


def _probe(directory: Path) -> None:
    """A disk that is full or mounted read-only is told before an engine is started. Raises `OSError`."""
    with tempfile.TemporaryFile(dir=directory) as probe:
        probe.write(b"probe")


def _take(lock: LockFile, directory: Path) -> None:
    """Make or check the directory, and lock it; wait a moment for another host's end. Raises `OSError`."""
    deadline = time.monotonic() + HANDOVER_S
    while True:
        prepare_directory(directory, purpose="state directory", elsewhere=_ELSEWHERE)
        try:
            holder = lock.take()
        except FileNotFoundError:  # a host that made it, and was refused, has just removed it
            if time.monotonic() >= deadline:
                raise
            continue
        if holder is None:
            return
        if time.monotonic() >= deadline:
            raise OperatorError(
                f"the state directory {directory} is in use by {holder}",
                f"stop that host with: vllm-console stop; or {_ELSEWHERE}",
            )
        time.sleep(_POLL_S)
