"""Where the demo runs: a free port or a demo already there, the directory for its logs, the profile it serves.

A host with another profile is somebody's work: its port counts as taken, it gets no load and no signal.
"""

from __future__ import annotations

import contextlib
import errno
import json
import socket
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

from engine_host.demo import hostlink
from engine_host.demo.child import HostChild
from engine_host.protocol.errors import EXIT_INVALID, OperatorError
from engine_host.protocol.snapshot import Snapshot, State
from engine_host.protocol.sockets import default_socket
from engine_host.state_dir import state_root

PROFILE = Path(__file__).resolve().parents[2] / "profiles" / "demo.toml"

MODELS_IN_PROFILES = "~/.cache/vllm-console/models"
"""What the demo's profiles say; a user with XDG_CACHE_HOME gets copies of them that say where it is instead."""

FIRST_PORT = 8000
PORTS_TRIED = 20


@dataclass
class Place:
    """Where the demo's host is, and whether it is ours to stop."""

    port: int
    socket: Path
    child: HostChild | None = None
    is_found: bool = False
    """A demo runs there already: it is shown, and left running."""
    is_busy: bool = False
    """The demo found there has requests running: somebody's load is on it."""


async def find_place(wanted: int | None) -> Place:
    """The first port that is free or has a demo of ours; only the given one where one is given."""
    first = wanted or FIRST_PORT
    for port in range(first, first + (1 if wanted else PORTS_TRIED)):
        place = Place(port, default_socket(port))
        if (snapshot := await demo_on(place.socket)) is not None:
            place.is_found = True
            place.is_busy = bool(snapshot.queue.running)
            return place
        if is_free(port):
            if port != first:
                say(f"port {first} is taken; using {port}")
            return place
    raise OperatorError(
        f"Port {first} is taken." if wanted else f"Ports {first} to {first + PORTS_TRIED - 1} are all taken.",
        "See who holds it with `ss -ltnp`, or name another: python -m engine_host.demo.run --port 9000",
        exit_code=EXIT_INVALID,
    )


async def demo_on(path: Path) -> Snapshot | None:
    """The snapshot of a host on this socket that runs the demo's profile; somebody else's host is none of ours."""
    with contextlib.suppress(hostlink.HostSilent):
        snapshot = await hostlink.status(path)
        if snapshot.profile.name == PROFILE.stem and snapshot.state is not State.DRAINING:
            return snapshot
    return None


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                return False
            raise
        return True


def state_dir(port: int) -> Path:
    """Logs and the audit trail of the demo's host, apart from those of a host in earnest."""
    return state_root() / f"demo-{port}"


def where_to_look(place: Place) -> str:
    return f"The host's whole output: {state_dir(place.port) / 'engine-host.log'}"


def profile_for(model_dir: Path) -> Path:
    """The demo profile, or a copy that names `model_dir` where the cache is not in its usual place.

    Its siblings (`demo-plain`, `demo-draft`) are copied with it, to be switched to.
    """
    models = model_dir.parent
    if models == Path(MODELS_IN_PROFILES).expanduser():
        return PROFILE
    copies = models.parent / "profiles"
    copies.mkdir(exist_ok=True)
    for file in PROFILE.parent.glob("demo*.toml"):
        text = file.read_text(encoding="utf-8")
        named = text.replace(f'"{MODELS_IN_PROFILES}/', f'"{json.dumps(str(models))[1:-1]}/')
        (copies / file.name).write_text(named, encoding="utf-8")
    return copies / PROFILE.name


def drain_timeout_s(profile: Path) -> float:
    return float(tomllib.loads(profile.read_text(encoding="utf-8"))["switch"]["drain_timeout_s"])


def say(text: str) -> None:
    print(f"demo: {text}", file=sys.stderr, flush=True)
