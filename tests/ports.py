"""Ports for servers that a test starts."""

from __future__ import annotations

import secrets
import socket

BELOW_EPHEMERAL = range(10_000, 32_000)
"""The kernel gives these to nobody who asks for any: what is free here stays so until the server binds it, whatever
test runs beside this one."""


def free_port() -> int:
    while True:
        port = secrets.choice(BELOW_EPHEMERAL)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
