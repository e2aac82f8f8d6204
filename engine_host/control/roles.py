"""Who is at the other end of the socket, and what they may do.

The kernel tells (SO_PEERCRED): nothing that the peer sends is believed. The owner of the host process and root are
admins; anyone else can only have come through the socket's group, and reads.
"""

from __future__ import annotations

import os
import pwd
import socket
import struct
from dataclasses import dataclass
from functools import lru_cache

from engine_host.protocol.methods import ALLOWED, Method, Role

_UCRED = struct.Struct("iII")
"""struct ucred: pid, uid, gid."""


@dataclass(frozen=True)
class Peer:
    """The process at the other end, as it was when it connected."""

    pid: int
    """0 when it lives in a PID namespace that this process cannot see."""
    uid: int
    login: str
    role: Role


def peer_of(connection: socket.socket) -> Peer:
    """Identify the other end of a connected Unix socket."""
    pid, uid, _gid = credentials_of(connection)
    return Peer(pid=pid, uid=uid, login=login_of(uid), role=role_of(uid, owner_uid=os.geteuid()))


def credentials_of(connection: socket.socket) -> tuple[int, int, int]:
    """Process, user and group at the other end, as the kernel saw them when it connected or began to listen."""
    pid, uid, gid = _UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    return pid, uid, gid


def role_of(uid: int, *, owner_uid: int) -> Role:
    return Role.ADMIN if uid in (owner_uid, 0) else Role.VIEWER


def may_call(role: Role, method: Method) -> bool:
    """The one place where a role is weighed against a method's risk."""
    return method.risk in ALLOWED[role]


@lru_cache(maxsize=256)
def login_of(uid: int) -> str:
    """The user's name, else `uid:N`. Kept, because the lookup may ask a directory server and runs on the loop."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid:{uid}"
