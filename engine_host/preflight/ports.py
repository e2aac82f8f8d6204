"""Whether the profile's API port can be listened on: free, or held by the running host itself."""

from __future__ import annotations

import errno
import socket
from collections.abc import Mapping
from typing import Any

from engine_host.gateway.http_server import port_holder
from engine_host.protocol.profiles import Finding

from .findings import error, info, warning

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8000


def check_port(server: Mapping[str, Any], running_port: int | None) -> list[Finding]:
    """`running_port`: the port that this host serves on. A switch keeps it, whatever the profile says: then a port in
    use only matters to the next start and warns. Binds for a moment and never listens, so that no client connects."""
    host, port = server.get("host") or DEFAULT_HOST, server.get("port") or running_port or DEFAULT_PORT
    if port == running_port:
        return []
    if type(port) is not int or not 1 <= port <= 65535 or not isinstance(host, str):
        return [error("port.invalid", f"server.port is {port!r} on {host!r}", "write: port = 8000")]
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
            return []
        except OSError as fault:
            return [_fault(fault, host, port, running_port)]


def _fault(fault: OSError, host: str, port: int, running_port: int | None) -> Finding:
    make, kept = error, ""
    if running_port is not None:
        make, kept = warning, f" (this host stays on {running_port}; its next start with this profile would fail)"
    if fault.errno == errno.EADDRINUSE:
        holder = port_holder(port)
        if "engine-host" in holder or "engine_host" in holder:
            return info(
                "port.engine_host",
                f"port {port} on {host} is served by an engine host, {holder}{kept}",
                "fine for a switch of that host; a second host needs another --port",
            )
        text = f"port {port} on {host} is in use by {holder}{kept}"
        return make("port.in_use", text, "stop it, or choose another [server] port")
    if fault.errno == errno.EACCES:
        return make("port.privileged", f"port {port} needs root: those below 1024 do{kept}", "choose 1024 or more")
    return make(
        "port.address",
        f"cannot listen on {host}:{port}: {fault.strerror or fault}{kept}",
        "set [server] host to an address of this machine, for example 127.0.0.1 or 0.0.0.0",
    )
