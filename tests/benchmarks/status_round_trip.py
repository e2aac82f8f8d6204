"""How long a `status` round trip takes on a control socket: `python -m tests.benchmarks.status_round_trip [SOCKET]`.

Without a socket it starts a server of its own in another process, over a host in memory: what the server itself costs.
With one it measures a running engine host as a client sees it. Blocking socket, one request at a time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import multiprocessing.connection
import os
import socket
import statistics
import tempfile
import time
from pathlib import Path

from tests.unit.control.harness import running_server

WARM_UP = 200


def measure(path: Path, count: int) -> list[float]:
    """Seconds of each of `count` round trips."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(10)
        connection.connect(os.fspath(path))
        stream = connection.makefile("rb")
        stream.readline()  # hello
        took = []
        for number in range(count + WARM_UP):
            request = json.dumps({"jsonrpc": "2.0", "id": number, "method": "status"}).encode() + b"\n"
            started = time.perf_counter()
            connection.sendall(request)
            reply = stream.readline()
            took.append(time.perf_counter() - started)
            assert json.loads(reply)["id"] == number
        return took[WARM_UP:]


def _serve(directory: str, ready: multiprocessing.connection.Connection) -> None:
    async def serve() -> None:
        async with running_server(Path(directory)):
            ready.send(True)
            await asyncio.to_thread(ready.recv)

    asyncio.run(serve())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("socket", nargs="?", type=Path)
    parser.add_argument("--count", type=int, default=5_000)
    arguments = parser.parse_args()
    if arguments.socket:
        took = measure(arguments.socket, arguments.count)
    else:
        here, there = multiprocessing.Pipe()
        with tempfile.TemporaryDirectory(prefix="rt-", dir="/tmp") as directory:
            server = multiprocessing.get_context("spawn").Process(target=_serve, args=(directory, there))
            server.start()
            here.recv()
            took = measure(Path(directory) / "run" / "host.sock", arguments.count)
            here.send(True)
            server.join(10)
    cuts = statistics.quantiles(took, n=100)
    print(f"status round trip, {len(took)} times: p50 {1e3 * cuts[49]:.3f} ms, p99 {1e3 * cuts[98]:.3f} ms")


if __name__ == "__main__":
    main()
