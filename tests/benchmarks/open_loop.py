"""Clients that do not wait for each other: requests come at a given rate, whatever becomes of those before.

Prompts are token ids, so that their lengths are exact, and random, so that the prefix cache is of no use. Every request
ends up as one `Outcome`.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx


@dataclass
class Outcome:
    """What a client saw of one request. Times are monotonic seconds."""

    sent: float
    prompt_tokens: int
    asked_tokens: int
    status: int = 0
    """0: no answer."""
    first_token: float | None = None
    ended: float | None = None
    """None: cut off by the client at the end of a run."""
    tokens: int = 0
    error: str | None = None

    @property
    def is_answered(self) -> bool:
        return self.status == 200 and self.ended is not None and self.error is None

    @property
    def ttft_s(self) -> float | None:
        """What the client waited, at the gate too."""
        return None if self.first_token is None else self.first_token - self.sent


@dataclass(frozen=True)
class Mix:
    """Uniform lengths, in tokens."""

    prompt: tuple[int, int]
    answer: tuple[int, int]

    def draw(self, dice: random.Random) -> tuple[list[int], int]:
        length = dice.randint(*self.prompt)
        return [dice.randint(1000, 40_000) for _ in range(length)], dice.randint(*self.answer)


MIXED = Mix((32, 256), (32, 192))
SHORT_ANSWERS = Mix((150, 300), (1, 2))
"""All prompt: the queue grows while the KV cache is a third full."""


class Clients:
    def __init__(self, url: str, mix: Mix, seed: int = 11) -> None:
        self._url = url
        self.mix = mix
        self._dice = random.Random(seed)
        self.outcomes: list[Outcome] = []
        self._tasks: set[asyncio.Task[None]] = set()
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
        self._http = httpx.AsyncClient(timeout=None, limits=limits, trust_env=False)

    @property
    def under_way(self) -> int:
        return len(self._tasks)

    async def open_loop(self, seconds: float, rate: Callable[[float], float]) -> None:
        """Send at `rate(elapsed)` requests a second, at random moments; returns when the last was sent."""
        began = time.monotonic()
        due = began
        while (now := time.monotonic()) - began < seconds:
            if (per_s := rate(now - began)) <= 0.0:
                due = now + 0.05
            else:
                while due <= now:
                    self._send()
                    due += self._dice.expovariate(per_s)
            await asyncio.sleep(min(max(due - time.monotonic(), 0.0), 0.05))

    async def closed_loop(self, seconds: float, clients: int) -> None:
        """`clients` that ask again as soon as they are answered."""
        until = time.monotonic() + seconds

        async def one() -> None:
            while time.monotonic() < until:
                await self._send()

        await asyncio.gather(*(one() for _ in range(clients)))

    def _send(self) -> asyncio.Task[None]:
        prompt, answer = self.mix.draw(self._dice)
        outcome = Outcome(time.monotonic(), len(prompt), answer)
        self.outcomes.append(outcome)
        task = asyncio.create_task(self._ask(outcome, prompt))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _ask(self, outcome: Outcome, prompt: list[int]) -> None:
        body: dict[str, Any] = {
            "model": "smollm2",
            "prompt": prompt,
            "max_tokens": outcome.asked_tokens,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
        }
        try:
            async with self._http.stream("POST", f"{self._url}/v1/completions", json=body) as response:
                outcome.status = response.status_code
                if response.status_code != 200:
                    outcome.error = (await response.aread()).decode()[:300]
                    outcome.ended = time.monotonic()
                    return
                async for line in response.aiter_lines():
                    if line.startswith("data: {"):
                        if '"error"' in line:
                            outcome.error = line[:300]
                        elif outcome.first_token is None:
                            outcome.first_token = time.monotonic()
                        outcome.tokens += 1
                    elif line == "data: [DONE]":
                        outcome.ended = time.monotonic()
                if outcome.ended is None:
                    outcome.ended, outcome.error = time.monotonic(), "the stream broke off"
        except httpx.HTTPError as error:
            outcome.error = f"{type(error).__name__}: {error}"[:300]
            outcome.ended = time.monotonic()

    async def finish(self, timeout_s: float) -> int:
        """Wait for those under way; returns how many were cut off after `timeout_s`."""
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=timeout_s)
        left = set(self._tasks)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        return len(left)

    async def close(self) -> None:
        await self._http.aclose()
