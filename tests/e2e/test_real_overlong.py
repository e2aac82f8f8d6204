"""Prompts that are too long for a real engine, over HTTP: every token count is held against vLLM's own usage."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import pytest_asyncio

from engine_host.engine.port import AsgiApp
from engine_host.engine.vllm.adapter import VllmEngine
from engine_host.gateway.asked import Asked
from engine_host.gateway.entry import Entry
from engine_host.gateway.http_server import HttpServer, address, bind
from engine_host.gateway.overlong import Preparation
from engine_host.gateway.refusals import Refusal
from engine_host.profiles import ProfileDirectory
from engine_host.profiles.throttle_table import Throttle

from .conftest import SMALL, Slow

pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(600),
    pytest.mark.asyncio(loop_scope="module"),
]

CONTEXT, CACHE = 256, 512
TEXT = " ".join(f"Line {number}: the river was {number * 7} metres wide there." for number in range(30))
"""Some 430 tokens: too long, and not too large."""
SYSTEM = {"role": "system", "content": "Answer in one short sentence."}
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
COUNTS = ("prompt_tokens", "completion_tokens", "total_tokens")


class Prepared(Preparation):
    """Keeps what it made of the last request."""

    last: Asked | Refusal | None = None
    is_off = False
    table = Throttle()

    def __init__(self, engine: VllmEngine) -> None:
        super().__init__(lambda: engine.facts, lambda: self.table)

    async def prepare(self, app: AsgiApp, asked: Asked) -> Asked | Refusal:
        if self.is_off:
            return asked
        self.last = await super().prepare(app, asked)
        return self.last


@dataclass
class Place:
    """One engine, and a client of its HTTP server."""

    engine: VllmEngine
    prepared: Prepared
    entry: Entry
    http: httpx.AsyncClient

    def profile(self, **table: Any) -> None:
        self.prepared.table = Throttle(**table)

    @property
    def admitted(self) -> Asked:
        assert isinstance(self.prepared.last, Asked), self.prepared.last
        return self.prepared.last

    async def post(self, path: str, **request: Any) -> httpx.Response:
        return await self.http.post(path, json={"model": "smollm2", "temperature": 0, **request})

    async def answered(self, path: str, **request: Any) -> tuple[httpx.Response, Any]:
        response = await self.post(path, **request)
        assert response.status_code == 200, response.text
        return response, response.json()

    async def streamed(self, path: str, **request: Any) -> tuple[httpx.Response, list[Any]]:
        response = await self.post(path, stream=True, **request)
        assert response.status_code == 200, response.text
        *events, done, rest = response.text.split("\n\n")
        assert (done, rest) == ("data: [DONE]", "")
        return response, [json.loads(event.removeprefix("data: ")) for event in events]

    async def count(self, **question: Any) -> int:
        """By vLLM, with nothing of ours in between."""
        response = await self.http.post("/tokenize", json={"model": "smollm2", **question})
        return int(response.json()["count"])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def place(model: None, slow: Slow) -> AsyncIterator[Place]:
    engine = VllmEngine(ProfileDirectory(SMALL).load("overlong").to_arguments(), lambda names: None)
    await engine.start(lambda step: None)
    prepared, entry = Prepared(engine), Entry()
    entry.gate.prepare = prepared.prepare
    entry.attach(engine.app)
    listener = bind("127.0.0.1", 0)
    server = HttpServer(entry, listener, {})
    await server.start()
    try:
        url = f"http://{address(*listener.getsockname())}"
        async with httpx.AsyncClient(base_url=url, timeout=120) as http:
            yield Place(engine, prepared, entry, http)
    finally:
        await server.close()
        await engine.stop(5.0)


def prompts(path: str, text: str = TEXT) -> dict[str, Any]:
    if path == COMPLETIONS:
        return {"prompt": text}
    return {"messages": [SYSTEM, {"role": "user", "content": text}]}


def text_of(answer: Any) -> str:
    (choice,) = answer["choices"]
    return str(choice["text"] if "text" in choice else choice["message"]["content"])


def text_of_events(events: list[Any]) -> str:
    choices = [event["choices"][0] for event in events if event["choices"]]
    return "".join(choice.get("text") or choice.get("delta", {}).get("content") or "" for choice in choices)


async def test_the_engine_is_as_small_as_the_tests_take_it(place: Place) -> None:
    facts = place.engine.facts
    assert (facts.max_model_len_tokens, facts.total_blocks, facts.block_size) == (CONTEXT, 16, 32)
    assert not facts.reserves_answer
    assert CONTEXT < await place.count(prompt=TEXT) < CACHE - 30


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
async def test_what_fits_goes_through_as_it_is_and_is_counted_as_vllm_counts_it(place: Place, path: str) -> None:
    place.profile()
    for text in ("Hi", "naïve 中文 🙂 <|im_end|> \u0301", TEXT[:500]):
        for added in ({}, {"add_special_tokens": True}, {"chat_template_kwargs": {"a": 1}}):
            _, answer = await place.answered(path, max_tokens=1, **prompts(path, text), **added)
            assert answer["usage"]["prompt_tokens"] == place.admitted.prompt_tokens
            assert place.admitted.through is None


async def test_lists_and_token_ids_are_counted_as_vllm_counts_them(place: Place) -> None:
    place.profile()
    for prompt in (["one", TEXT[:200]], [1, 2, 3], [[1, 2], [3, 4, 5]]):
        _, answer = await place.answered(COMPLETIONS, max_tokens=1, prompt=prompt)
        assert answer["usage"]["prompt_tokens"] == place.admitted.prompt_tokens


@pytest.mark.parametrize("max_tokens", [1, 100, None])
async def test_the_limit_is_vllms_own(place: Place, max_tokens: int | None) -> None:
    """The longest prompt that goes through is answered; one token more vLLM would refuse too."""
    place.profile()
    ids = list(range(1000, 1000 + CONTEXT))
    await place.answered(COMPLETIONS, prompt=ids[: CONTEXT - 1], max_tokens=max_tokens)
    refused = await place.post(COMPLETIONS, prompt=ids, max_tokens=max_tokens)
    place.prepared.is_off = True
    by_vllm = await place.post(COMPLETIONS, prompt=ids, max_tokens=max_tokens)
    place.prepared.is_off = False
    assert refused.status_code == by_vllm.status_code == 400
    assert refused.json()["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
async def test_reject_names_the_tokens_and_the_limit(place: Place, path: str) -> None:
    place.profile()
    asked = prompts(path)
    response = await place.post(path, max_tokens=8, **asked)
    tokens = await place.count(**asked)
    error = response.json()["error"]
    assert response.status_code == 400 and error["code"] == "context_length_exceeded"
    assert f"prompt has {tokens} tokens" in error["message"] and f"it may have {CONTEXT - 1}" in error["message"]


@pytest.mark.parametrize("keep", ["start", "end"])
@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
async def test_truncate_keeps_one_end_and_tells_how_much_is_gone(place: Place, path: str, keep: str) -> None:
    place.profile(overlong="truncate", truncate_keep=keep)
    asked = prompts(path)
    tokens = await place.count(**asked)
    response, answer = await place.answered(path, max_tokens=8, **asked)
    used = answer["usage"]["prompt_tokens"]
    assert used == place.admitted.prompt_tokens and CONTEXT - 8 - 12 <= used <= CONTEXT - 8
    assert response.headers["x-vllm-console-truncated"] == f"cut={tokens - used}; kept={keep}"
    sent = json.loads(place.admitted.body)
    kept = sent["prompt"] if path == COMPLETIONS else sent["messages"][1]["content"]
    assert kept and (TEXT.startswith if keep == "start" else TEXT.endswith)(kept)
    assert path == COMPLETIONS or sent["messages"][0] == SYSTEM
    response, events = await place.streamed(path, max_tokens=8, stream_options={"include_usage": True}, **asked)
    assert response.headers["x-vllm-console-truncated"] == f"cut={tokens - used}; kept={keep}"
    assert all(events[-1]["usage"][name] == answer["usage"][name] for name in COUNTS)
    assert text_of_events(events) == text_of(answer)


async def test_truncate_cuts_token_ids_to_the_token(place: Place) -> None:
    place.profile(overlong="truncate")
    response, answer = await place.answered(COMPLETIONS, prompt=list(range(1000, 1300)), max_tokens=6)
    assert answer["usage"]["prompt_tokens"] == 250
    assert response.headers["x-vllm-console-truncated"] == "cut=50; kept=end"


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
async def test_segments_answer_as_their_windows_would(place: Place, path: str) -> None:
    place.profile(overlong="segment", segment_overlap_tokens=16)
    response, answer = await place.answered(path, max_tokens=6, **prompts(path))
    windows = place.admitted.segments
    assert response.headers["x-vllm-console-segmented"] == f"windows={windows}; overlap=16"
    assert windows in (2, 3)
    usage = answer["usage"]
    assert usage["prompt_tokens"] == place.admitted.prompt_tokens
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert windows <= usage["completion_tokens"] <= 6 * windows
    assert answer["choices"][0]["finish_reason"] in ("stop", "length")
    assert len(text_of(answer).split("\n\n")) >= windows
    response, events = await place.streamed(path, max_tokens=6, stream_options={"include_usage": True}, **prompts(path))
    assert response.headers["x-vllm-console-segmented"] == f"windows={windows}; overlap=16"
    assert text_of_events(events) == text_of(answer)
    assert all(events[-1]["usage"][name] == usage[name] for name in COUNTS)
    assert len({event["id"] for event in events}) == 1
    finishes = [event["choices"][0]["finish_reason"] for event in events if event["choices"]]
    assert finishes[-1] == answer["choices"][0]["finish_reason"] and not any(finishes[:-1])


async def test_a_window_is_answered_as_if_it_had_been_asked_alone(place: Place) -> None:
    place.profile(overlong="segment", segment_overlap_tokens=20)
    ids = list(range(1000, 1400))
    _, joined = await place.answered(COMPLETIONS, prompt=ids, max_tokens=16)
    alone = [await place.answered(COMPLETIONS, prompt=ids[at : at + 240], max_tokens=16) for at in (0, 220)]
    assert text_of(joined) == "\n\n".join(text_of(answer) for _, answer in alone)
    assert joined["usage"]["prompt_tokens"] == 240 + 180


async def test_what_has_no_segments_is_refused_with_the_reason(place: Place) -> None:
    place.profile(overlong="segment")
    response = await place.post(CHAT, n=2, **prompts(CHAT))
    assert response.status_code == 400 and "more than one choice" in response.json()["error"]["message"]


async def idle(place: Place) -> None:
    async with asyncio.timeout(30):
        while place.engine.backlog().unfinished:
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("is_streamed", [True, False])
async def test_a_client_that_hangs_up_amid_its_segments_leaves_nothing_running(
    place: Place, slow: Slow, is_streamed: bool
) -> None:
    place.profile(overlong="segment", segment_overlap_tokens=16)
    request = {"stream": is_streamed, "max_tokens": 100, "min_tokens": 100, **prompts(COMPLETIONS)}
    with slow(0.1):
        asking = asyncio.create_task(place.post(COMPLETIONS, **request))
        async with asyncio.timeout(30):
            while not place.engine.backlog().unfinished:
                await asyncio.sleep(0.01)
        asking.cancel()
        await idle(place)
    await asyncio.sleep(0.2)  # for a next window, which must not come
    assert not place.engine.backlog().unfinished


@pytest.mark.parametrize("overlong", ["reject", "truncate", "segment"])
async def test_what_is_larger_than_the_kv_cache_is_refused_within_a_second_while_others_run(
    place: Place, slow: Slow, overlong: str
) -> None:
    place.profile(overlong=overlong)
    long = {"max_tokens": 60, "min_tokens": 60}
    with slow(0.2):
        others = [asyncio.create_task(place.answered(COMPLETIONS, prompt=f"Story {n}", **long)) for n in range(2)]
        async with asyncio.timeout(30):
            while place.engine.backlog().unfinished < 2:
                await asyncio.sleep(0.01)
        for asked in (prompts(COMPLETIONS, TEXT + TEXT), {"prompt": list(range(1000, 1000 + CACHE + 1))}):
            began = time.monotonic()
            response = await place.post(COMPLETIONS, **asked)
            assert time.monotonic() - began < 1
            assert response.status_code == 400 and response.json()["reason"] == "too_large"
            assert f"holds {CACHE}" in response.json()["error"]["message"]
        assert place.engine.backlog().unfinished == 2 == place.entry.inflight
    assert place.entry.refused_by_reason["too_large"] >= 2
    for answer in await asyncio.gather(*others):
        assert answer[1]["usage"]["completion_tokens"] == 60


async def test_vllms_own_truncation_is_vllms(place: Place) -> None:
    place.profile(overlong="truncate")
    response, answer = await place.answered(
        COMPLETIONS, truncate_prompt_tokens=100, max_tokens=4, **prompts(COMPLETIONS)
    )
    assert answer["usage"]["prompt_tokens"] == 100 == place.admitted.prompt_tokens
    assert "x-vllm-console-truncated" not in response.headers


async def test_a_very_long_text_does_not_keep_the_event_loop(place: Place) -> None:
    """A megabyte, which takes vLLM's tokenizer the better part of a second."""
    place.profile()
    longest, last = 0.0, time.monotonic()

    async def watch() -> None:
        nonlocal longest, last
        while True:
            await asyncio.sleep(0.005)
            now = time.monotonic()
            longest, last = max(longest, now - last), now

    watching = asyncio.create_task(watch())
    response = await place.post(COMPLETIONS, **prompts(COMPLETIONS, TEXT * (1_000_000 // len(TEXT))))
    watching.cancel()
    assert response.json()["reason"] == "too_large"
    assert longest < 0.25, "seconds in which nobody else was served"
