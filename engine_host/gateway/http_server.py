"""The HTTP server: uvicorn on a socket bound before anything else starts.

Binding first means that a port in use is reported at once, with its holder, and that clients get an answer (503,
"starting") from the first second on. Signals stay with the host: uvicorn's own handlers would end the server before
requests are drained.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import resource
import socket
from collections.abc import Generator, Mapping
from typing import Any

import psutil
import uvicorn

from engine_host.engine.port import AsgiApp
from engine_host.gateway.server_settings import read_server_settings
from engine_host.protocol.errors import EXIT_FAILED, OperatorError

_KEEP_ALIVE_S = 5
"""As `vllm serve`."""
_DESCRIPTORS = 65_535
"""Wanted of open files, as `vllm serve`; the usual 1,024 end at about a thousand streams."""
_CLOSE_S = 5.0
"""What open connections get to finish writing once the engine is gone."""


def bind(host: str, port: int) -> socket.socket:
    """Bind and listen. Raises `OperatorError` naming the process that holds the port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # By its protocol asyncio knows connections that must not wait for acknowledgements between tokens (TCP_NODELAY).
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(2048)
    except UnicodeError:
        listener.close()
        raise OperatorError(f"{host!r} is no address", "Give an address of this machine with --host.") from None
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


def address(host: str, port: int) -> str:
    """As it stands in a URL."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


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


def raise_descriptor_limit() -> None:
    """Let this process have as many open files as the system allows it, up to `_DESCRIPTORS`; each stream is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(_DESCRIPTORS, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):  # fewer streams are no reason not to serve
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class _QuietServer(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


class HttpServer:
    """Serves `entry` on `listener` until `close`."""

    def __init__(self, entry: AsgiApp, listener: socket.socket, server_arguments: Mapping[str, Any]) -> None:
        settings = read_server_settings(server_arguments)
        self._listener = listener
        self._server = _QuietServer(
            uvicorn.Config(
                entry,
                lifespan="off",
                access_log=not settings.disable_uvicorn_access_log,
                log_level=settings.uvicorn_log_level,
                timeout_keep_alive=_KEEP_ALIVE_S,
                timeout_graceful_shutdown=int(_CLOSE_S),
                h11_max_incomplete_event_size=settings.h11_max_incomplete_event_size,
                ssl_keyfile=settings.ssl_keyfile,
                ssl_certfile=settings.ssl_certfile,
                ssl_ca_certs=settings.ssl_ca_certs,
                ssl_cert_reqs=settings.ssl_cert_reqs,
                ssl_ciphers=settings.ssl_ciphers,
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
