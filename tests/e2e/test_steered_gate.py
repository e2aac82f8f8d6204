"""The gate before a real engine: what waits, streams, hangs up and is refused."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

import httpx
import pytest

from .real_host import RealHost, until

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def host(steered: RealHost) -> RealHost:
    return steered.begin_on("gated")


class Stream:
    """One streamed completion, and what its client has seen of it."""

    def __init__(self, http: httpx.AsyncClient, tokens: int, **more: Any) -> None:
        self.status: int | None = None
        self.headers: httpx.Headers = httpx.Headers()
        self.body = b""
        self.tokens = 0
        self._tokens = tokens
        headers = {"x-class": more.pop("class_name")} if "class_name" in more else {}
        body = {"model": "smollm2", "prompt": "Once upon a time", "max_tokens": tokens, "ignore_eos": True, **more}
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        self._request = http.stream("POST", "/v1/completions", json=body, headers=headers)
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        async with self._request as response:
            self.status, self.headers = response.status_code, response.headers
            async for line in response.aiter_lines():
                if self.status != 200:
                    self.body += line.encode()
                elif line.startswith("data: {") and (usage := json.loads(line[6:]).get("usage")):
                    self.tokens = usage["completion_tokens"]

    async def hang_up(self) -> None:
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.task

    @property
    def is_whole(self) -> bool:
        return self.status == 200 and self.tokens == self._tokens


@contextlib.asynccontextmanager
async def clients(host: RealHost) -> Any:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=host.url, timeout=240, limits=limits, trust_env=False) as http:
        yield http


def counts(host: RealHost) -> dict[str, Any]:
    return dict(host.ask("throttle.get")["result"]["counts"])


async def waiting(host: RealHost, inflight: int, held: int) -> None:
    def is_so() -> bool:
        now = counts(host)
        return (now["inflight"], now["held"]) == (inflight, held)

    await asyncio.to_thread(until, is_so, 60, f"{inflight} in flight and {held} held")


async def test_who_waits_sees_nothing_until_its_turn_and_what_is_cheap_answers_meanwhile(host: RealHost) -> None:
    before = counts(host)
    async with clients(host) as http:
        with host.slow():
            running = [Stream(http, 80) for _ in range(2)]
            await waiting(host, 2, 0)
            low = Stream(http, 8, class_name="low")
            await waiting(host, 2, 1)
            high = Stream(http, 80, class_name="high")
            gone = Stream(http, 8)
            await waiting(host, 2, 3)
            refused = Stream(http, 8, class_name="low")  # a higher one would have pushed out the low one
            await refused.task
            assert refused.status == 429 and json.loads(refused.body)["reason"] == "queue_full"
            for path in ("/health", "/metrics", "/v1/models", "/version"):
                assert (await http.get(path)).status_code == 200
            counted = await http.post("/tokenize", json={"model": "smollm2", "prompt": "a b"})
            assert counted.json()["count"] >= 2
            await gone.hang_up()
            await waiting(host, 2, 2)
            assert low.status is None and high.status is None, "an answer begins when it is admitted"

            def is_told() -> bool:  # a snapshot is handed out again for 50 ms
                queue = host.status()["queue"]
                return (queue["held"], queue["running"]) == (2, 2)

            await asyncio.to_thread(until, is_told, 10, "2 held and 2 running in the snapshot")
        await asyncio.wait({stream.task for stream in running}, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.to_thread(until, lambda: high.status == 200, 60, "the higher class admitted")
        await asyncio.gather(*(stream.task for stream in (*running, low, high)))
        assert all(stream.is_whole for stream in (*running, low, high))
    await waiting(host, 0, 0)
    now = counts(host)
    grown = {key: now[key] - before[key] for key in ("held_total", "gone_total", "admitted_total", "refused_total")}
    assert grown == {"held_total": 3, "gone_total": 1, "admitted_total": 4, "refused_total": 1}
    assert now["refused_by_reason"]["queue_full"] == before["refused_by_reason"].get("queue_full", 0) + 1
    assert now["hold_wait"]["5m"]["n"] >= 2


async def test_more_choices_than_the_cap_go_when_nothing_else_does(host: RealHost) -> None:
    async with clients(host) as http:
        with host.slow():
            wide = Stream(http, 40, n=3)
            await waiting(host, 3, 0)
            other = Stream(http, 8)
            await waiting(host, 3, 1)
        await asyncio.gather(wide.task, other.task)
        assert wide.status == 200 and other.is_whole


async def test_malformed_json_is_vllms_to_refuse(host: RealHost) -> None:
    async with clients(host) as http:
        answer = await http.post("/v1/completions", content=b'{"prompt":', headers={"content-type": "application/json"})
        assert answer.status_code in (400, 422)
