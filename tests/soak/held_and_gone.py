"""Ten thousand connections that wait at the gate and are dropped: what they leave behind in the server's process.

    python -m tests.soak.held_and_gone [--connections 10000] [--rounds 3]

The server and its gate run here, on the event loop that the host uses; the clients are another process, so that neither
needs twice the descriptors. Every round all of them are held at once and then dropped at once. Prints a row a round and
ends with 1 when a task, a descriptor or a place is left, or a block of memory for every thirtieth connection. Blocks
are what Python has given out; what the process holds beside them is its allocator's, and lies in pieces afterwards.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any

import psutil

from engine_host.engine.port import Receive, Scope, Send
from engine_host.gateway.entry import Entry
from engine_host.gateway.http_server import HttpServer, bind, raise_descriptor_limit
from engine_host.throttle.limits import Limits

LIMIT_S = 120.0
BODY = b'{"prompt": "' + b"word " * 200 + b'", "stream": true}'

CLIENTS = """
import resource, socket, sys
port, count, size = map(int, sys.argv[1:])
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
body = sys.stdin.buffer.read(size)
head = f"POST /v1/completions HTTP/1.1\\r\\nhost: gate\\r\\ncontent-length: {size}\\r\\n\\r\\n".encode()
connections = []
for _ in range(count):
    connections.append(socket.create_connection(("127.0.0.1", port), 60))
    connections[-1].sendall(head + body)
sys.stdin.buffer.read(1)
for connection in connections:
    connection.close()
"""
"""Sends all requests, keeps the connections until a byte comes on standard input, and closes them."""


@dataclass(frozen=True)
class Left:
    """In the server's process."""

    tasks: int
    descriptors: int
    inflight: int
    held: int
    blocks: int
    memory_mb: float
    """Unique set size; shown, not judged."""


def left(entry: Entry) -> Left:
    gc.collect()
    process = psutil.Process()
    return Left(
        tasks=len(asyncio.all_tasks()),
        descriptors=process.num_fds(),
        inflight=entry.gate.inflight,
        held=entry.gate.held,
        blocks=sys.getallocatedblocks(),
        memory_mb=process.memory_full_info().uss / 1e6,
    )


async def never(scope: Scope, receive: Receive, send: Send) -> None:
    await asyncio.Event().wait()


async def until(condition: Any, what: str) -> None:
    ends_at = time.monotonic() + LIMIT_S
    while not condition():
        if time.monotonic() > ends_at:
            raise SystemExit(f"not within {LIMIT_S:.0f} s: {what}")
        await asyncio.sleep(0.01)


async def one_round(entry: Entry, port: int, connections: int) -> tuple[float, Left]:
    """How long the gate took to be rid of them, and what is left."""
    tasks, files = len(asyncio.all_tasks()), psutil.Process().num_fds()
    command = [sys.executable, "-c", CLIENTS, str(port), str(connections), str(len(BODY))]
    clients = await asyncio.create_subprocess_exec(*command, stdin=subprocess.PIPE)
    try:
        assert clients.stdin is not None
        clients.stdin.write(BODY)
        await until(lambda: entry.gate.held == connections, f"{connections} held, {entry.gate.held} are")
        clients.stdin.write(b"x")
        began = time.monotonic()
        await until(lambda: not entry.gate.held, "all gone from the gate")
        took_s = time.monotonic() - began
        await until(lambda: len(asyncio.all_tasks()) <= tasks, "their tasks ended")
    finally:
        with contextlib.suppress(ProcessLookupError):
            clients.kill()
        await clients.wait()
    del clients
    await until(lambda: psutil.Process().num_fds() <= files, "their descriptors closed")
    return took_s, left(entry)


async def run(connections: int, rounds: int) -> int:
    raise_descriptor_limit()
    entry = Entry()
    entry.attach(never)
    entry.gate.apply(Limits(paused=True, hold_queue=2 * connections, hold_deadline_s=2 * LIMIT_S))
    listener = bind("127.0.0.1", 0)
    port = listener.getsockname()[1]
    server = HttpServer(entry, listener, {"uvicorn_log_level": "warning", "disable_uvicorn_access_log": True})
    await server.start()
    before = left(entry)
    print(f"before: {asdict(before)}")
    after: list[Left] = []
    for number in range(1, rounds + 1):
        took_s, now = await one_round(entry, port, connections)
        after.append(now)
        print(f"round {number}: {connections} held, gone within {took_s:.2f} s of their closing; left: {asdict(now)}")
    await server.close()
    counts = entry.gate.counts()
    print(f"held {counts.held_total}, gone {counts.gone_total}, refused {counts.refused_total}")
    is_clean = all(
        (now.tasks, now.descriptors, now.inflight, now.held) == (before.tasks, before.descriptors, 0, 0)
        for now in after
    )
    has_grown = after[-1].blocks - before.blocks > rounds * connections / 30  # what is made once is among them
    return 0 if is_clean and not has_grown and counts.gone_total == connections * rounds else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    try:
        import uvloop

        factory = uvloop.new_event_loop
    except ImportError:
        factory = None
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(run(options.connections, options.rounds))


if __name__ == "__main__":
    sys.exit(main())
