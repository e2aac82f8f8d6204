"""The control server: the socket, its sessions, and the order in which they end.

Owns everything in this package that outlives a request. Three limits hold here: how many sessions there are, how many
of them those who may only read can take, and how long a close may take.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from pathlib import Path

from engine_host.protocol.envelope import ErrorCode, RpcError
from engine_host.protocol.methods import Role

from .actions import Actions
from .audit import AuditLog
from .controlled import Controlled
from .requests import rpc_error
from .roles import Peer, peer_of
from .session import Session
from .socket_file import SocketFile

log = logging.getLogger(__name__)

MAX_SESSIONS = 64

MAX_VIEWER_SESSIONS = 48
"""The rest is kept for those who can act: a crowd of dashboards must not lock the operator out."""

SWEEP_S = 1.0
"""How often the sessions are asked whether their reader still reads."""


class ControlServer:
    """Serves the control socket from `start` to `close`.

    `peer_of` identifies the other end of a connection; only tests replace it.
    """

    def __init__(
        self,
        host: Controlled,
        socket_path: Path,
        audit_path: Path,
        *,
        socket_group: str | None = None,
        label: str = "",
        peer_of: Callable[[socket.socket], Peer] = peer_of,
    ) -> None:
        self.host = host
        self._audit = AuditLog(audit_path)
        self.actions = Actions(host, self._audit)
        self._file = SocketFile(socket_path, group=socket_group, label=label)
        self._peer_of = peer_of
        self._sessions: dict[Session, Role | None] = {}
        """With the role of the peer; `None` for one that was refused and is being told so."""
        self._server: asyncio.Server | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._all_left = asyncio.Event()

    async def start(self) -> None:
        """Listen. Raises `OperatorError` when the socket cannot be had; nothing is left behind then."""
        listener = self._file.claim()
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_unix_server(lambda: Session(self), sock=listener)
        except BaseException:
            self._file.release()
            raise
        self._tasks = [
            asyncio.create_task(self._announce_events(), name="control events"),
            asyncio.create_task(self._sweep(), name="control sweep"),
        ]

    async def close(self, deadline_s: float) -> None:
        """Take no more connections, let actions end and replies leave, then close, all within `deadline_s`.

        What is not done by then is cut off. Does nothing when not started, or a second time.
        """
        if self._server is None:
            return
        server, self._server = self._server, None
        loop = asyncio.get_running_loop()
        deadline = loop.time() + deadline_s
        server.close()
        # Half for the actions at most, so that there is time left to tell their callers.
        await self.actions.finish(deadline_s / 2)
        await asyncio.sleep(0)  # lets the outcomes reach their sessions
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for session in list(self._sessions):
            session.close()
        await self._wait_until_left(deadline - loop.time())
        for session in list(self._sessions):
            session.abort()
        await self._wait_until_left(1.0)
        self._audit.close()
        self._file.release()

    # What sessions ask of the server.

    def admit(self, session: Session, transport: asyncio.Transport) -> Peer | RpcError:
        """Identify a new session's peer, or refuse it when there are too many."""
        roles = [role for role in self._sessions.values() if role is not None]
        self._sessions[session] = None
        if len(roles) >= MAX_SESSIONS:
            if len(self._sessions) > 2 * MAX_SESSIONS:
                transport.abort()  # even being told no takes a moment and memory each
            return self._too_many(f"{MAX_SESSIONS} consoles and scripts are connected to this host already, its limit")
        try:
            # A duplicate, because not every event loop lets its transport's socket be asked.
            with socket.socket(fileno=socket.dup(transport.get_extra_info("socket").fileno())) as connection:
                peer = self._peer_of(connection)
        except OSError as error:
            return rpc_error(ErrorCode.BUSY, f"the host cannot tell who connects: {error.strerror}", "try again")
        if peer.role is Role.VIEWER and roles.count(Role.VIEWER) >= MAX_VIEWER_SESSIONS:
            return self._too_many(
                f"{MAX_VIEWER_SESSIONS} consoles and scripts that may only look are connected to this host already, "
                "their limit"
            )
        self._sessions[session] = peer.role
        return peer

    def _too_many(self, fact: str) -> RpcError:
        return rpc_error(ErrorCode.BUSY, fact, "end those that nobody needs (pgrep -af vllm-console), then try again")

    def left(self, session: Session) -> None:
        self._sessions.pop(session, None)
        if not self._sessions:
            self._all_left.set()

    @property
    def session_count(self) -> int:
        return len(self._sessions)

    async def _wait_until_left(self, timeout_s: float) -> None:
        self._all_left.clear()
        if not self._sessions or timeout_s <= 0:
            return
        try:
            await asyncio.wait_for(self._all_left.wait(), timeout_s)
        except TimeoutError:
            log.info("%d sessions did not close in time", len(self._sessions))

    async def _announce_events(self) -> None:
        """One waiter for all sessions: wakes them when there is an event they have not seen."""
        seen = self.host.events.last_seq
        while True:
            await self.host.events.wait_beyond(seen)
            seen = self.host.events.last_seq
            self._with_each(lambda session: session.pump_events())

    async def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(SWEEP_S)
            self._with_each(lambda session: session.close_if_abandoned(loop.time()))

    def _with_each(self, serve: Callable[[Session], None]) -> None:
        """What one session cannot take costs that session, not those after it."""
        for session in list(self._sessions):
            try:
                serve(session)
            except Exception:
                log.exception("closing a session that cannot be served")
                session.abort()
