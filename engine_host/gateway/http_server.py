"""The HTTP server: uvicorn on a socket bound before anything else starts.

Binding first means that a port in use is reported at once, with its holder, and that clients get an answer (503,
"starting") from the first second on. Signals stay with the host: uvicorn's own handlers would end the server before
requests are drained.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import Generator, Mapping
from typing import Any

import psutil
import uvicorn

from engine_host.gateway.entry import Entry
from engine_host.protocol.errors import EXIT_FAILED, OperatorError

_UVICORN_ARGUMENTS = {
    "ssl_keyfile": "ssl_keyfile",
    "ssl_certfile": "ssl_certfile",
    "ssl_ca_certs": "ssl_ca_certs",
    "ssl_cert_reqs": "ssl_cert_reqs",
    "ssl_ciphers": "ssl_ciphers",
    "uvicorn_log_level": "log_level",
}
"""vLLM's front-end arguments that concern the server itself, by uvicorn's names."""
_KEEP_ALIVE_S = 5
"""As `vllm serve`."""
_HEADER_BYTES = 4 << 20
"""Header limit as `vllm serve`: LoRA and tool requests carry long ones."""
_CLOSE_S = 5.0
"""What open connections get to finish writing once the engine is gone."""


def bind(host: str, port: int) -> socket.socket:
    """Bind and listen. Raises `OperatorError` naming the process that holds the port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(2048)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise OperatorError(
                f"port {port} on {host} is in use by {port_holder(port)}",
                "Stop it, or choose another port with --port or [server] port in the profile.",
            ) from None
        if error.errno == errno.EACCES:
            raise OperatorError(
                f"port {port} needs root: ports below 1024 are privileged", "Choose a port of 1024 or more with --port."
            ) from None
        raise OperatorError(
            f"cannot listen on {host}:{port}: {error.strerror or error}",
            "Give an address of this machine with --host, for example 127.0.0.1 or 0.0.0.0.",
        ) from None
    listener.setblocking(False)
    return listener


def port_holder(port: int) -> str:
    """The process that listens on `port`, in words; as much as this user may see."""
    try:
        for connection in psutil.net_connections(kind="tcp"):
            if connection.laddr and connection.laddr.port == port and connection.status == psutil.CONN_LISTEN:
                if connection.pid is None:
                    break
                process = psutil.Process(connection.pid)
                return f"process {connection.pid} ({' '.join(process.cmdline())[:120] or process.name()})"
    except psutil.Error:
        pass
    return "a process of another user"


class _QuietServer(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


class HttpServer:
    """Serves `entry` on `listener` until `close`."""

    def __init__(self, entry: Entry, listener: socket.socket, server_arguments: Mapping[str, Any]) -> None:
        chosen = {
            ours: server_arguments[vllms] for vllms, ours in _UVICORN_ARGUMENTS.items() if vllms in server_arguments
        }
        chosen.setdefault("log_level", "info")
        self._listener = listener
        self._server = _QuietServer(
            uvicorn.Config(
                entry,
                lifespan="off",
                access_log=not server_arguments.get("disable_uvicorn_access_log", False),
                timeout_keep_alive=_KEEP_ALIVE_S,
                timeout_graceful_shutdown=int(_CLOSE_S),
                h11_max_incomplete_event_size=_HEADER_BYTES,
                **chosen,
            )
        )
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._task = asyncio.create_task(self._server.serve(sockets=[self._listener]), name="http-server")
        while not self._server.started:
            if self._task.done():
                self._task.result()
                raise OperatorError("the HTTP server ended while starting", exit_code=EXIT_FAILED)
            await asyncio.sleep(0.005)

    @property
    def ended(self) -> asyncio.Task[None]:
        """Done when the server has ended, which before `close` is a failure."""
        assert self._task is not None, "asked for after start()"
        return self._task

    async def close(self) -> None:
        """Stop listening, let open connections finish within a few seconds, close the port."""
        if self._task is not None:
            self._server.should_exit = True
            _, late = await asyncio.wait({self._task}, timeout=_CLOSE_S + 2)
            if late:
                self._task.cancel()
                await asyncio.wait({self._task}, timeout=1)
        self._listener.close()
