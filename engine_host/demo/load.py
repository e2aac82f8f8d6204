"""A steady mixed load for the demo: clients that ask, wait and ask again, their number following a slow wave.

It is a guest: never more requests in flight than it was given, refusals and lost connections are waited out, and a
stop closes every connection at once, which makes the server drop the requests behind them.

`python -m engine_host.demo.load --url http://127.0.0.1:8000 --seconds 20 --concurrency 16 --json`
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import math
import signal
import sys
import time
from collections.abc import Iterator

import httpx
import msgspec

from engine_host.demo.prompts import Prompt, prompts
from engine_host.protocol.errors import EXIT_DONE, EXIT_FAILED

WAVE_S = 45.0
"""Length of one wave: a watcher sees the bars rise and fall within a minute."""

WAVE_LOW = 0.5
"""The wave's trough as a share of the concurrency: the engine never runs empty."""

FIRST_BACKOFF_S = 0.25
LONGEST_BACKOFF_S = 4.0
"""Backoff doubles between these after refusals and lost connections, and starts over after a success."""

REQUEST_TIMEOUT_S = 180.0
"""For one answer. A CPU engine under this load takes up to a minute; an engine that hangs must not hold us for ever."""

RETRYABLE = frozenset({429, 502, 503})
"""Refused for now: the throttle, a draining or restarting engine."""

STEP_S = 0.1
"""How often the number of clients is compared with the wave."""


class Report(msgspec.Struct, kw_only=True):
    """What the load did; every started request ends up in exactly one of completed, refused, failed, aborted."""

    seconds: float = 0.0
    started: int = 0
    completed: int = 0
    refused: int = 0
    """Answered with one of `RETRYABLE`."""
    failed: int = 0
    """No connection, a broken stream, or any other error status."""
    aborted: int = 0
    """In flight when the load was stopped."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    completed_by_kind: dict[str, int] = {}
    last_error: str | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Answer(msgspec.Struct):
    usage: _Usage | None = None


class _Refused(Exception):
    def __init__(self, status: int, retry_after_s: float | None) -> None:
        super().__init__(f"HTTP {status}")
        self.retry_after_s = retry_after_s


def clients_at(elapsed_s: float, concurrency: int) -> int:
    """How many clients the wave wants, between `WAVE_LOW` of `concurrency` and all of it; at least one."""
    height = WAVE_LOW + (1 - WAVE_LOW) * (1 - math.cos(2 * math.pi * elapsed_s / WAVE_S)) / 2
    return max(1, round(concurrency * height))


class Load:
    """Run once with `run`; `report` may be read at any time."""

    def __init__(
        self,
        url: str,
        *,
        model: str,
        concurrency: int,
        seed: int = 7,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.report = Report()
        self._url = url
        self._model = model
        self._concurrency = concurrency
        self._prompts: Iterator[Prompt] = prompts(seed)
        self._transport = transport
        self._backoff_s = FIRST_BACKOFF_S
        self._resume_at = 0.0

    async def run(self, seconds: float | None = None) -> Report:
        """Send load for `seconds`, or until cancelled; every request is over when this returns or raises."""
        started_at = time.monotonic()
        limits = httpx.Limits(max_connections=self._concurrency, max_keepalive_connections=self._concurrency)
        client = httpx.AsyncClient(
            base_url=self._url, timeout=REQUEST_TIMEOUT_S, limits=limits, transport=self._transport, trust_env=False
        )
        clients: set[asyncio.Task[None]] = set()
        try:
            async with client:
                try:
                    async with asyncio.timeout(seconds):
                        await self._follow_wave(client, clients, started_at)
                except TimeoutError:
                    pass
                finally:
                    for task in clients:
                        task.cancel()
                    await asyncio.gather(*clients, return_exceptions=True)
        finally:
            self.report.seconds = time.monotonic() - started_at
        return self.report

    async def _follow_wave(
        self, client: httpx.AsyncClient, clients: set[asyncio.Task[None]], started_at: float
    ) -> None:
        while True:
            now = time.monotonic()
            while now >= self._resume_at and len(clients) < clients_at(now - started_at, self._concurrency):
                task = asyncio.create_task(self._ask_once(client, next(self._prompts)))
                clients.add(task)
                task.add_done_callback(clients.discard)
            await asyncio.sleep(STEP_S)

    async def _ask_once(self, client: httpx.AsyncClient, prompt: Prompt) -> None:
        self.report.started += 1
        try:
            usage = await self._send(client, prompt)
        except asyncio.CancelledError:
            self.report.aborted += 1
            raise
        except _Refused as refusal:
            self.report.refused += 1
            self._back_off(refusal, refusal.retry_after_s)
        except (httpx.HTTPError, msgspec.MsgspecError) as error:
            self.report.failed += 1
            self._back_off(error, None)
        else:
            self._backoff_s = FIRST_BACKOFF_S
            self.report.completed += 1
            self.report.completed_by_kind[prompt.kind] = self.report.completed_by_kind.get(prompt.kind, 0) + 1
            self.report.prompt_tokens += usage.prompt_tokens
            self.report.completion_tokens += usage.completion_tokens

    async def _send(self, client: httpx.AsyncClient, prompt: Prompt) -> _Usage:
        usage: _Usage | None = None
        async with client.stream("POST", prompt.path, json={"model": self._model, **prompt.body}) as response:
            if response.status_code in RETRYABLE:
                raise _Refused(response.status_code, _seconds(response.headers.get("retry-after")))
            response.raise_for_status()
            if prompt.is_streamed:
                async for line in response.aiter_lines():
                    if line.startswith("data: {"):
                        usage = msgspec.json.decode(line[6:].encode(), type=_Answer).usage or usage
            else:
                usage = msgspec.json.decode(await response.aread(), type=_Answer).usage
        if usage is None:
            raise httpx.RemoteProtocolError("the answer ended before its usage")
        return usage

    def _back_off(self, error: Exception, retry_after_s: float | None) -> None:
        """Nobody sends before the pause is over; clients that fail together lengthen it once, not once each."""
        self.report.last_error = f"{type(error).__name__}: {error}".splitlines()[0]
        now = time.monotonic()
        if now < self._resume_at:
            return
        self._resume_at = now + min(retry_after_s or self._backoff_s, LONGEST_BACKOFF_S)
        self._backoff_s = min(2 * self._backoff_s, LONGEST_BACKOFF_S)


def _seconds(header: str | None) -> float | None:
    """A `Retry-After` in seconds; its other form, a date, is no use within a few seconds."""
    with contextlib.suppress(ValueError):
        seconds = float(header or "")
        return seconds if 0 < seconds < math.inf else None
    return None


def _line(report: Report) -> str:
    rate = report.completion_tokens / report.seconds if report.seconds else 0.0
    return (
        f"{report.completed} requests done in {report.seconds:.1f} s, {report.completion_tokens} tokens "
        f"({rate:.0f} /s); refused {report.refused}, failed {report.failed}, aborted at the end {report.aborted}"
    )


async def _run(load: Load, seconds: float | None) -> Report:
    task = asyncio.create_task(load.run(seconds))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await task
    return load.report


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m engine_host.demo.load", description=__doc__.splitlines()[0])
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="the OpenAI API's address")
    parser.add_argument("--model", default="smollm2", help="the model's served name")
    parser.add_argument("--seconds", type=float, help="how long; without it, until stopped")
    parser.add_argument("--concurrency", type=int, default=16, help="clients at the top of the wave")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--json", action="store_true", help="print the report as one JSON object")
    options = parser.parse_args(argv)
    if options.concurrency < 1 or (options.seconds is not None and not 0 < options.seconds < math.inf):
        parser.error("--concurrency takes a whole number from 1 up, --seconds a number above 0")
    load = Load(options.url, model=options.model, concurrency=options.concurrency, seed=options.seed)
    report = asyncio.run(_run(load, options.seconds))
    print(msgspec.json.encode(report).decode() if options.json else _line(report))
    if not report.completed and report.last_error:
        print(f"No request succeeded at {options.url}; the last one: {report.last_error}.", file=sys.stderr)
        print("  Check that the address is right and the engine serves: `vllm-console status`.", file=sys.stderr)
        return EXIT_FAILED
    return EXIT_DONE


if __name__ == "__main__":
    sys.exit(main())
