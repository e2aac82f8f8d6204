"""Whether the profile's API port can be listened on: free, or held by the running host itself."""

from __future__ import annotations

import errno
import socket
from collections.abc import Mapping
from typing import Any

from engine_host.gateway.http_server import port_holder
from engine_host.protocol.profiles import Finding

from .findings import error, info

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8000


def check_port(server: Mapping[str, Any], running_port: int | None) -> list[Finding]:
    """`running_port`: the port that this host serves on, which needs not be free. Binds for a moment and never
    listens, so that no client can connect."""
    host, port = server.get("host") or DEFAULT_HOST, server.get("port") or DEFAULT_PORT
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
            return [_fault(fault, host, port)]


def _fault(fault: OSError, host: str, port: int) -> Finding:
    if fault.errno == errno.EADDRINUSE:
        holder = port_holder(port)
        if "engine-host" in holder or "engine_host" in holder:
            return info(
                "port.engine_host",
                f"port {port} on {host} is served by an engine host, {holder}",
                "fine for a switch of that host; a second host needs another --port",
            )
        return error(
            "port.in_use", f"port {port} on {host} is in use by {holder}", "stop it, or choose another [server] port"
        )
    if fault.errno == errno.EACCES:
        return error(
            "port.privileged", f"port {port} needs root: ports below 1024 are privileged", "choose 1024 or more"
        )
    return error(
        "port.address",
        f"cannot listen on {host}:{port}: {fault.strerror or fault}",
        "set [server] host to an address of this machine, for example 127.0.0.1 or 0.0.0.0",
    )
