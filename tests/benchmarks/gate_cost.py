"""What the gate costs a request, and that it costs a token nothing: `python -m tests.benchmarks.gate_cost`.

The same application with the host's entry and gate before it and without, in runs that take turns; each pair of
neighbouring runs gives a difference, and the median of them counts. Prompts are prepared as the host prepares them:
where tokens are limited, or a prompt may be too long, the application's tokenizer is asked, which answers in no time.
In process, with the messages that a server would hand over, so that nothing else is measured; then over HTTP with
uvicorn, for what a client sees of it. Exit 1 above the budget.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import statistics
import sys
import time
from collections.abc import AsyncIterator, MutableMapping
from dataclasses import dataclass
from typing import Any

from engine_host.engine.port import AsgiApp, EngineFacts, Receive, Scope, Send
from engine_host.gateway.entry import Entry
from engine_host.gateway.gate import Gate
from engine_host.gateway.http_server import HttpServer, bind
from engine_host.gateway.overlong import Preparation
from engine_host.profiles.throttle_table import Throttle
from engine_host.protocol.snapshot import WINDOWS
from engine_host.telemetry.latency import LatencyWindows
from engine_host.throttle.limits import Limits

BUDGET_US = 100.0
"""A request."""
TOKEN_BUDGET_US = 0.1
"""A token: what cannot be told from nothing in runs of a quarter of a million."""
TOKENS = 256
"""Of a streamed answer."""
REQUESTS = 1_000
"""Of a run in process."""
HTTP_REQUESTS = 500

EVERY_LIMIT = Limits(
    max_inflight=1_000,
    request_rate=1e9,
    request_burst=10**9,
    prompt_token_rate=1e9,
    prompt_token_burst=10**9,
    min_class="low",
)
FACTS = EngineFacts(
    vllm_version="0.32.0",
    model="m",
    max_model_len_tokens=131_072,
    block_size=16,
    total_blocks=65_536,
    capacity_tokens=1 << 20,
    speculation_method=None,
    k_max=None,
    prefix_caching=True,
)
CLASSES = Throttle(class_header="x-class", api_key_classes={f"key-{number}": "high" for number in range(100)})


class Answering:
    """Reads the request and streams `tokens` chunks, as vLLM's app does it, in no time."""

    def __init__(self, tokens: int) -> None:
        self._tokens = tokens

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive()).get("more_body", False):
            pass
        if scope["path"] == "/tokenize":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b'{"count": 200, "tokens": []}'})
            return
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(self._tokens):
            await send({"type": "http.response.body", "body": b"data: {}\n\n", "more_body": True})
        await send({"type": "http.response.body", "body": b""})


@dataclass(frozen=True)
class Case:
    name: str
    body_bytes: int = 1_000
    limits: Limits | None = None
    tokens: int = 0
    is_held: bool = False
    """Each request waits for the one before it."""
    is_judged: bool = True


CASES = (
    Case("no limit"),
    Case("every limit, 100 API keys", limits=EVERY_LIMIT),
    Case("held: each waits for the one before it", limits=Limits(max_inflight=1, hold_queue=REQUESTS), is_held=True),
    Case("no limit, a body of 32 KiB", body_bytes=32 << 10),
    Case("no limit, a body of 1 MiB", body_bytes=1 << 20, is_judged=False),
    Case(f"no limit, {TOKENS} tokens streamed", tokens=TOKENS),
    Case(f"every limit, {TOKENS} tokens streamed", limits=EVERY_LIMIT, tokens=TOKENS),
)


def gated(app: AsgiApp, limits: Limits | None) -> Entry:
    entry = Entry(Gate(LatencyWindows(WINDOWS)))
    entry.gate.prepare = Preparation(lambda: FACTS, lambda: CLASSES).prepare
    entry.attach(app)
    if limits is not None:
        entry.gate.set_classes(CLASSES)
        entry.gate.apply(limits)
    return entry


def body_of(size: int) -> bytes:
    start, end = b'{"model": "m", "n": 1, "priority": 0, "prompt": "', b'", "stream": true, "max_tokens": 16}'
    return start + b"word " * ((size - len(start) - len(end)) // 5) + end


SCOPE: dict[str, Any] = {
    "type": "http",
    "method": "POST",
    "path": "/v1/completions",
    "headers": [
        (b"host", b"127.0.0.1:8000"),
        (b"content-type", b"application/json"),
        (b"authorization", b"Bearer key-77"),
        (b"user-agent", b"a client"),
    ],
}


async def in_process(app: AsgiApp, body: bytes, is_held: bool) -> float:
    """Microseconds of this thread a request."""

    async def send(message: MutableMapping[str, Any]) -> None:
        pass

    async def one() -> None:
        messages: list[MutableMapping[str, Any]] = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> MutableMapping[str, Any]:
            if messages:
                return messages.pop()
            await asyncio.Event().wait()  # the client stays
            raise AssertionError

        await app(dict(SCOPE), receive, send)

    began = time.thread_time()
    if is_held:
        await asyncio.gather(*(one() for _ in range(REQUESTS)))
    else:
        for _ in range(REQUESTS):
            await one()
    return (time.thread_time() - began) / REQUESTS * 1e6


class Yielding(Answering):
    """Gives the others a turn while it answers, so that they come to wait."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await asyncio.sleep(0)
        await super().__call__(scope, receive, send)


async def measure(case: Case, pairs: int) -> tuple[list[float], list[float]]:
    """Microseconds a request without and with the gate, run by run."""
    app = Yielding(case.tokens) if case.is_held else Answering(case.tokens)
    entry, body = gated(app, case.limits), body_of(case.body_bytes)
    without, with_gate = [], []
    for pair in range(pairs + 1):
        order: list[tuple[AsgiApp, list[float]]] = [(app, without), (entry, with_gate)]
        for one, figures in order if pair % 2 else order[::-1]:
            figures.append(await in_process(one, body, case.is_held))
    counts = entry.gate.counts()
    assert counts.admitted_total == (pairs + 1) * REQUESTS and counts.held_total >= case.is_held * REQUESTS
    return without[1:], with_gate[1:]  # the first pair warms up


@contextlib.asynccontextmanager
async def served(app: AsgiApp) -> AsyncIterator[int]:
    listener = bind("127.0.0.1", 0)
    port = listener.getsockname()[1]
    server = HttpServer(app, listener, {"uvicorn_log_level": "critical", "disable_uvicorn_access_log": True})
    await server.start()
    try:
        yield port
    finally:
        await server.close()


async def over_http(pairs: int) -> tuple[list[float], list[float]]:
    """Microseconds of this thread a request, its client and the server both on it, without and with the gate."""
    app, body = Answering(16), body_of(1_000)
    head = f"POST /v1/completions HTTP/1.1\r\nhost: gate\r\ncontent-length: {len(body)}\r\n\r\n".encode()
    without, with_gate = [], []
    async with contextlib.AsyncExitStack() as stack:
        clients = []
        for one in (app, gated(app, EVERY_LIMIT)):
            port = await stack.enter_async_context(served(one))
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            stack.callback(writer.close)
            clients.append((reader, writer))
        for pair in range(pairs + 1):
            order = list(zip(clients, (without, with_gate), strict=True))
            for (reader, writer), figures in order if pair % 2 else order[::-1]:
                began = time.thread_time()
                for _ in range(HTTP_REQUESTS):
                    writer.write(head + body)
                    answer = await reader.readuntil(b"\r\n0\r\n\r\n")
                    assert answer.startswith(b"HTTP/1.1 200")
                figures.append((time.thread_time() - began) / HTTP_REQUESTS * 1e6)
    return without[1:], with_gate[1:]


def row(name: str, without: list[float], with_gate: list[float]) -> tuple[str, float]:
    added = statistics.median(after - before for before, after in zip(without, with_gate, strict=True))
    ratio = statistics.median(after / before for before, after in zip(without, with_gate, strict=True))
    before_us, after_us = statistics.median(without), statistics.median(with_gate)
    return f"| {name} | {before_us:.1f} | {after_us:.1f} | {added:.1f} | {ratio:.2f} |", added


async def run(pairs: int) -> int:
    print(f"{pairs} pairs of runs of {REQUESTS} requests, taking turns; microseconds of processor time a request\n")
    print("| request | without | with the gate | added, median of pairs | ratio, median of pairs |")
    print("|---|---:|---:|---:|---:|")
    is_met, added_by_case = True, {}
    for case in CASES:
        text, added = row(case.name, *await measure(case, pairs))
        added_by_case[case] = added
        is_met &= added < BUDGET_US or not case.is_judged
        print(text, flush=True)
    text, added = row("over HTTP with its client, every limit, 16 tokens", *await over_http(pairs))
    is_met &= added < BUDGET_US
    print(text)
    print(f"\nbudget: {BUDGET_US:.0f} us a request")
    for limits in (None, EVERY_LIMIT):
        short, long = (
            next(added for case, added in added_by_case.items() if (case.limits, case.tokens) == (limits, tokens))
            for tokens in (0, TOKENS)
        )
        per_token = (long - short) / TOKENS
        is_met &= per_token < TOKEN_BUDGET_US
        print(
            f"added a token, {'every limit' if limits else 'no limit'}: {per_token:.3f} us, budget {TOKEN_BUDGET_US} us"
        )
    print("met" if is_met else "MISSED")
    return 0 if is_met else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=11)
    options = parser.parse_args()
    if options.pairs < 1:
        parser.error("--pairs takes a whole number from 1 up")
    return asyncio.run(run(options.pairs))


if __name__ == "__main__":
    sys.exit(main())
