"""Ten thousand clients that wait and hang up leave nothing behind: no place, no task, no socket, no memory.

A thousand of them over real connections; `python -m tests.soak.held_and_gone` has all ten thousand do so.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys

from engine_host.gateway.asked import Asked
from engine_host.gateway.held_request import HeldRequest
from engine_host.gateway.line import _Waiter
from engine_host.gateway.passage import Passage
from engine_host.throttle.limits import Limits
from tests.unit.gateway.clients import Client, Served, turns, until
from tests.unit.test_http_server import serving

_BODY = b'{"user": "crowd", "prompt": "' + b"x" * 1_000 + b'"}'
OURS = (HeldRequest, Asked, Passage, _Waiter)


def ours() -> int:
    gc.collect()
    return sum(isinstance(thing, OURS) for thing in gc.get_objects())


def is_as_new(served: Served) -> bool:
    gate = served.gate
    counts = gate.counts()
    return (counts.inflight, counts.held, gate._line.held_bytes.used, gate._line._wake) == (0, 0, 0, None)


async def crowd(served: Served, size: int, is_cancelled: bool) -> None:
    """Comes, waits, and leaves all at once: its clients hang up, or its tasks are cancelled."""
    clients = [Client(served.entry, _BODY).start() for _ in range(size)]
    await until(lambda: served.gate.held == size, 60)
    assert served.gate._line.held_bytes.used == size * len(_BODY)
    for client in clients:
        if is_cancelled and client.task is not None:
            client.task.cancel()
        else:
            client.hang_up()
    await asyncio.wait({client.task for client in clients if client.task is not None}, timeout=60)
    assert served.gate.held == 0
    assert not any(client.sent for client in clients)


def blocks() -> int:
    """Of memory that Python has given out."""
    gc.collect()
    return sys.getallocatedblocks()


async def test_ten_thousand_that_wait_and_hang_up_leave_no_task_no_place_and_no_memory() -> None:
    served = Served(Limits(max_inflight=1, hold_queue=20_000), held_bytes=1 << 30)
    first = await served.ask("first")
    await crowd(served, 500, is_cancelled=False)  # what is made once is not what is left behind
    before = blocks()
    await crowd(served, 5_000, is_cancelled=False)
    await crowd(served, 5_000, is_cancelled=True)
    await turns()
    assert blocks() - before < 500, "each of them would have left one at least"
    queue = served.gate._line._queue
    assert sum(map(sys.getsizeof, (queue._by_age, *(one.waiting for one in queue._classes)))) < 4_096
    assert asyncio.all_tasks() == {asyncio.current_task(), first.task}
    await served.finish()
    await first.answered()
    assert is_as_new(served) and ours() == 0
    assert served.gate.counts().gone_total == 10_500


async def test_a_thousand_connections_that_wait_and_are_dropped_leave_no_socket_and_no_task() -> None:
    size = 1_000
    served = Served(Limits(max_inflight=1, hold_queue=2 * size), held_bytes=1 << 30)
    head = f"POST /v1/completions HTTP/1.1\r\nhost: gate\r\ncontent-length: {len(_BODY)}\r\n\r\n".encode()
    async with serving(served.entry) as (_, url):
        port = int(url.rsplit(":", 1)[1])
        first = await served.ask("first")
        tasks, files = len(asyncio.all_tasks()), len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - names are enough
        writers = []
        for _ in range(size):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(head + _BODY)
            writers.append(writer)
        async with asyncio.timeout(30):
            while served.gate.held < size:
                await asyncio.sleep(0.01)
            for writer in writers:
                writer.transport.abort()
            while served.gate.held or len(asyncio.all_tasks()) > tasks:
                await asyncio.sleep(0.01)
        assert len(os.listdir("/proc/self/fd")) == files  # noqa: PTH208
        assert served.gate.counts().gone_total == size
        await served.finish()
        await first.answered()
    assert is_as_new(served)
    del writers, writer
    assert ours() == 0
