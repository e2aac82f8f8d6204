"""The control socket as a file: its lock, its mode, and its removal.

A socket file alone says nothing about whether anyone is behind it; the lock beside it does.
"""

from __future__ import annotations

import grp
import os
import socket
import stat
import weakref
from pathlib import Path

from engine_host.lock_file import Holder, LockFile
from engine_host.private_directory import kind_of, prepare_runtime_directory
from engine_host.protocol.errors import OperatorError
from engine_host.protocol.sockets import MAX_SOCKET_PATH_BYTES, runtime_dir

from .roles import credentials_of

CONNECT_TIMEOUT_S = 1.0
"""For asking whether anyone is behind an existing socket. A live host accepts at once, its backlog permitting."""

BACKLOG = 64


class SocketFile:
    """One listening control socket at `path`, from `claim` to `release`.

    `group`: members of this group may connect too; the directory is then searchable and the socket writable for them.
    `label`: what this host runs, for the message that a second host on the same socket gets.
    """

    def __init__(self, path: Path, *, group: str | None = None, label: str = "") -> None:
        self.path = path
        self._gid = None if group is None else _gid_of(group)
        self._group = group
        self._lock = LockFile(path.with_name(path.name + ".lock"), label)
        self._listener: socket.socket | None = None
        self._inode: tuple[int, int] | None = None

    @property
    def lock_path(self) -> Path:
        return self._lock.path

    def claim(self) -> socket.socket:
        """Take the path and listen on it. Raises `OperatorError` with nothing left behind."""
        check_path_length(self.path)
        directory = self.path.parent
        prepare_runtime_directory(
            directory, self._gid, self._group, may_make=directory.absolute() == runtime_dir().absolute()
        )
        try:
            self._take_lock()
            self._clear_stale()
            return self._bind()
        except OperatorError:
            self.release()
            raise
        except OSError as error:
            self.release()
            raise OperatorError(
                f"cannot make the control socket {self.path}: {error.strerror}", "choose another with --socket PATH"
            ) from None

    def release(self) -> None:
        """Remove the socket if it is still the one that `claim` made, and drop the lock. May be called twice."""
        if self._inode is not None:
            try:
                found = self.path.lstat()
                if (found.st_dev, found.st_ino) == self._inode:
                    self.path.unlink()
            except OSError:
                pass  # gone already, or out of reach: nothing of ours is left to remove
            self._inode = None
        self._lock.release()
        _listening.discard(self)

    def _take_lock(self) -> None:
        if (holder := self._lock.take()) is not None:
            raise _taken(self.path, holder, self.lock_path)

    def _forget_in_child(self) -> None:
        if self._listener is not None:
            self._listener.close()

    def _clear_stale(self) -> None:
        try:
            mode = self.path.lstat().st_mode
        except FileNotFoundError:
            return
        if not stat.S_ISSOCK(mode):
            raise OperatorError(
                f"{self.path} exists and is {kind_of(mode)}, not a socket", "move it away, or choose another --socket"
            )
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(CONNECT_TIMEOUT_S)
            try:
                probe.connect(os.fspath(self.path))
            except ConnectionRefusedError:
                self.path.unlink()
            except OSError as error:
                # A full backlog or a hung owner: someone is there, and a socket is replaced only over a dead one.
                raise OperatorError(
                    f"{self.path} is in use: its owner does not answer ({error})",
                    f"find it with: fuser {self.path}",
                ) from None
            else:
                pid, _, _ = credentials_of(probe)
                raise _taken(self.path, Holder(pid), self.lock_path)

    def _bind(self) -> socket.socket:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.setblocking(False)
            listener.bind(os.fspath(self.path))
            made = self.path.lstat()
            self._inode = (made.st_dev, made.st_ino)
            # Between bind and listen nobody can connect, so there is no moment with a mode that is too open.
            if self._gid is None:
                self.path.chmod(0o600)
            else:
                os.chown(self.path, -1, self._gid)
                self.path.chmod(0o660)
            listener.listen(BACKLOG)
        except BaseException:
            listener.close()
            raise
        self._listener = listener
        _listening.add(self)
        return listener


_listening: weakref.WeakSet[SocketFile] = weakref.WeakSet()
"""To be let go in forked children: an engine core that outlives a killed host must not keep its socket."""


def _let_go_in_child() -> None:
    for file in list(_listening):
        file._forget_in_child()


os.register_at_fork(after_in_child=_let_go_in_child)


def check_path_length(path: Path) -> None:
    length = len(os.fsencode(path))
    if length > MAX_SOCKET_PATH_BYTES:
        raise OperatorError(
            f"the socket path {path} has {length} bytes; the system allows {MAX_SOCKET_PATH_BYTES}",
            "set VLLM_CONSOLE_RUNTIME_DIR to a shorter directory, or use --socket PATH",
        )


def _taken(path: Path, holder: Holder, lock_path: Path) -> OperatorError:
    if holder.is_alive:
        return OperatorError(
            f"{path} is in use by {holder}",
            f"attach to it with: vllm-console -t {path}; or stop it with: vllm-console -t {path} stop; "
            "or start this host with another --port or --socket",
        )
    # The host is gone and its lock is not: a child that outlived it has the file open.
    return OperatorError(
        f"{path} is locked, but the host that locked it (process {holder.pid or 'unknown'}) is gone: "
        "a process it left behind holds the lock",
        f"find it with: fuser -v {lock_path}",
    )


def _gid_of(group: str) -> int:
    try:
        return grp.getgrnam(group).gr_gid
    except KeyError:
        raise OperatorError(f'there is no group "{group}"', "see the groups with: getent group") from None
