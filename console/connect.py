"""TARGET -> the control socket to attach to.

A path, else `$VLLM_CONSOLE_TARGET`, else the one live socket of the runtime directory. Nothing is guessed: with
several hosts on a machine, picking one would sooner or later stop the wrong engine.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from engine_host.protocol.errors import EXIT_UNREACHABLE, OperatorError
from engine_host.protocol.sockets import MAX_SOCKET_PATH_BYTES, runtime_dir

TARGET_VARIABLE = "VLLM_CONSOLE_TARGET"

PROBE_TIMEOUT_S = 0.5
"""A Unix connect is answered by the kernel at once, unless the listener's backlog is full; then it counts as live."""


@dataclass(frozen=True, slots=True)
class Target:
    """A control socket on this machine."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)


def resolve(given: str | None, environ: Mapping[str, str] = os.environ) -> Target:
    """The target an operator means.

    Raises `OperatorError`: exit 2 for a target that makes no sense or is ambiguous, 3 when there is nothing to
    attach to.
    """
    if given is not None and not given.strip():
        # Most likely a script's variable that was never set: the one host that runs here need not be the one it means.
        raise OperatorError(
            f"-t {given!r}: the target is empty.",
            "Give the path of a control socket, or leave -t out for the one host that runs here.",
        )
    text = given or environ.get(TARGET_VARIABLE, "")
    if text:
        return _named(text, f"${TARGET_VARIABLE}" if not given else "-t")
    return _only_one_in(runtime_dir())


def _named(text: str, source: str) -> Target:
    scheme, separator, _ = text.partition("://")
    if separator:
        what = {
            "ssh": "attaching over ssh",
            "http": "reading a plain vLLM server's metrics",
            "https": "reading a plain vLLM server's metrics",
        }.get(scheme)
        if what is None:
            raise OperatorError(
                f"{source} {text!r}: {scheme}:// is no kind of target.",
                "Give the path of a control socket, for example /run/user/1000/vllm-console/engine-host-8000.sock",
            )
        raise OperatorError(
            f"{source} {text!r}: {what} is not supported by this release.",
            "Log in on the node and give the path of its control socket.",
        )
    path = Path(text).expanduser()
    if len(os.fsencode(path)) > MAX_SOCKET_PATH_BYTES:
        raise OperatorError(
            f"{source}: the path has {len(os.fsencode(path))} bytes; a socket path holds {MAX_SOCKET_PATH_BYTES}.",
            "Use a shorter path, or a relative one.",
        )
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        raise OperatorError(
            f"{source}: there is no socket at {path}.",
            f"Start a host with: engine-host serve PROFILE --socket {path}",
            exit_code=EXIT_UNREACHABLE,
        ) from None
    except OSError as error:
        raise OperatorError(
            f"{source}: cannot look at {path}: {error.strerror}.",
            "Run as the user who owns the host, or ask for its socket group.",
            exit_code=EXIT_UNREACHABLE,
        ) from None
    if not stat.S_ISSOCK(mode):
        raise OperatorError(
            f"{source}: {path} is not a socket.",
            "Give the control socket of an engine host; `engine-host serve` prints its path.",
        )
    return Target(path)


def _only_one_in(directory: Path) -> Target:
    try:
        found = sorted(p for p in directory.glob("*.sock") if stat.S_ISSOCK(p.lstat().st_mode))
    except OSError as error:
        raise OperatorError(
            f"cannot read the runtime directory {directory}: {error.strerror}.",
            "Run as the user who owns the host, or name its socket with -t.",
            exit_code=EXIT_UNREACHABLE,
        ) from None
    # A killed host leaves its socket behind; that must not make the living one ambiguous.
    live = found if len(found) == 1 else [p for p in found if is_listening(p)]
    if len(live) == 1:
        return Target(live[0])
    if not live:
        left = f" ({len(found)} left behind by hosts that have ended)" if found else ""
        raise OperatorError(
            f"no engine host is running here: no live control socket in {directory}{left}.",
            "Start one with: engine-host serve PROFILE",
            exit_code=EXIT_UNREACHABLE,
        )
    listed = "".join(f"\n    {p}" for p in live)
    raise OperatorError(
        f"{len(live)} engine hosts are running here; which one is meant?{listed}",
        f"Name one with -t PATH, or set ${TARGET_VARIABLE}.",
    )


def is_listening(path: Path) -> bool:
    """Whether some process has the socket open; one that we may not reach counts, as it is somebody's."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(PROBE_TIMEOUT_S)
        try:
            probe.connect(os.fspath(path))
        except OSError as error:
            return error.errno not in {errno.ECONNREFUSED, errno.ENOENT}
    return True
