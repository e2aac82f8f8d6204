"""The HTTP server without an engine: its port, its answers, its end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, MutableMapping
from typing import Any

import httpx
import pytest

from engine_host.engine.port import Receive, Scope, Send
from engine_host.gateway import http_server
from engine_host.gateway.entry import Entry
from engine_host.gateway.http_server import HttpServer, bind, port_holder
from engine_host.protocol.errors import EXIT_INVALID, OperatorError
from tests.ports import free_port


@contextlib.asynccontextmanager
async def serving(app: Any, **settings: Any) -> AsyncIterator[tuple[HttpServer, str]]:
    port = free_port()
    server = HttpServer(app, bind("127.0.0.1", port), {"uvicorn_log_level": "critical", **settings})
    await server.start()
    try:
        yield server, f"http://127.0.0.1:{port}"
    finally:
        await server.close()


async def answer(send: Send, *parts: bytes) -> None:
    message: MutableMapping[str, Any] = {"type": "http.response.start", "status": 200, "headers": []}
    await send(message)
    for part in parts:
        await send({"type": "http.response.body", "body": part, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def test_from_its_start_the_server_says_why_nothing_is_served_and_after_its_end_the_port_is_free() -> None:
    async with serving(Entry()) as (_, url), httpx.AsyncClient() as client:
        response = await client.get(f"{url}/v1/models")
    assert response.status_code == 503
    assert response.json()["state"] == "starting"
    bind("127.0.0.1", int(url.rsplit(":", 1)[1])).close()


async def test_tokens_do_not_wait_for_the_acknowledgement_of_those_before() -> None:
    async with serving(Entry()) as (server, _):
        assert server._listener.proto == socket.IPPROTO_TCP  # asyncio sets TCP_NODELAY on connections of such alone


async def test_a_response_under_way_is_finished_when_the_server_closes() -> None:
    is_asked, may_go_on = asyncio.Event(), asyncio.Event()

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        is_asked.set()
        await may_go_on.wait()
        await answer(send, b"the ", b"whole")

    async with serving(slow) as (server, url), httpx.AsyncClient() as client:
        asking = asyncio.create_task(client.get(url, timeout=30))
        await asyncio.wait_for(is_asked.wait(), 10)
        closing = asyncio.create_task(server.close())
        await asyncio.sleep(0)
        may_go_on.set()
        assert (await asking).text == "the whole"
        await asyncio.wait_for(closing, 10)


async def test_a_response_that_never_ends_does_not_hold_up_the_close(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "_CLOSE_S", 0.2)
    is_asked = asyncio.Event()

    async def endless(scope: Scope, receive: Receive, send: Send) -> None:
        is_asked.set()
        await asyncio.Event().wait()

    async with serving(endless) as (server, url), httpx.AsyncClient() as client:
        asking = asyncio.create_task(client.get(url, timeout=30))
        await asyncio.wait_for(is_asked.wait(), 10)
        await asyncio.wait_for(server.close(), 10)
        with pytest.raises(httpx.HTTPError):
            (await asking).raise_for_status()


async def test_the_limit_of_a_requests_head_is_the_profiles() -> None:
    """Only `h11` counts the head; with httptools, where it is installed, there is no such limit to exceed."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await answer(send, b"ok")

    async with serving(app, h11_max_incomplete_event_size=2048) as (server, _):
        assert server._server.config.h11_max_incomplete_event_size == 2048


async def test_signals_stay_with_the_host() -> None:
    import signal

    before = signal.getsignal(signal.SIGTERM)
    async with serving(Entry()):
        assert signal.getsignal(signal.SIGTERM) is before


def test_a_port_in_use_is_told_with_its_holder() -> None:
    with bind("127.0.0.1", 0) as holder:
        port = holder.getsockname()[1]
        with pytest.raises(
            OperatorError, match=rf"port {port} on 127.0.0.1 is in use by process {os.getpid()} "
        ) as error:
            bind("127.0.0.1", port)
    assert "--port" in error.value.remedy
    assert error.value.exit_code == EXIT_INVALID


def test_the_holder_of_a_port_is_named_with_its_command() -> None:
    code = "import socket, sys; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True)"
    command = [sys.executable, "-c", code + "; sys.stdin.read()", "a-telling-argument"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None and holder.stdin is not None
        port = int(holder.stdout.readline())
        assert port_holder(port).startswith(f"process {holder.pid} (")
        holder.stdin.close()
    assert port_holder(free_port()) == "a process of another user"


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-name.invalid", "." * 70])
def test_an_address_that_is_not_this_machines_is_refused(host: str) -> None:
    with pytest.raises(OperatorError) as error:
        bind(host, free_port())
    assert host in error.value.fact
    assert "--host" in error.value.remedy


RAISED = """
import resource
from engine_host.gateway.http_server import raise_descriptor_limit
resource.setrlimit(resource.RLIMIT_NOFILE, (256, {hard}))
raise_descriptor_limit()
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


def test_as_many_files_may_be_open_as_the_system_allows() -> None:
    done = subprocess.run([sys.executable, "-c", RAISED.format(hard=700)], capture_output=True, text=True, check=True)
    assert done.stdout == "700\n"
