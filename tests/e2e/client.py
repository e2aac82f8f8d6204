"""Requests of every kind, and what a client sees of them."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import Any

import httpx


@dataclass
class Seen:
    """What one client saw of one request."""

    kind: str
    status: int = 0
    texts: dict[int, str] = field(default_factory=dict)
    """By choice."""
    finish: dict[int, str] = field(default_factory=dict)
    usage: dict[str, int] = field(default_factory=dict)
    error: str | None = None
    longest_gap_s: float = 0.0
    logprob_tokens: list[str] = field(default_factory=list)

    is_greedy: bool = True

    @property
    def content(self) -> tuple[Any, ...]:
        """What must not depend on a switch. What is drawn by chance may: with speculation the draws depend on K."""
        counts = (self.usage.get("prompt_tokens"), self.usage.get("completion_tokens"))
        if not self.is_greedy:
            return self.finish, counts
        return self.texts, self.finish, counts, self.logprob_tokens


async def ask(
    http: httpx.AsyncClient, url: str, kind: str, path: str, body: dict[str, Any], seen: Seen | None = None
) -> Seen:
    """Send one request, streamed if its body says so. `seen` can be looked at meanwhile."""
    body = {"model": "smollm2", "temperature": 0, **body}
    seen = Seen(kind) if seen is None else seen
    seen.is_greedy = body["temperature"] == 0
    if body.get("stream"):
        body["stream_options"] = {"include_usage": True}
        await _stream(http, url + path, body, seen)
        return seen
    answer = await http.post(url + path, json=body)
    seen.status = answer.status_code
    if answer.status_code != 200:
        seen.error = answer.text
        return seen
    _take(seen, answer.json())
    return seen


async def _stream(http: httpx.AsyncClient, url: str, body: dict[str, Any], seen: Seen) -> None:
    last = time.monotonic()
    async with http.stream("POST", url, json=body) as response:
        seen.status = response.status_code
        if response.status_code != 200:
            seen.error = (await response.aread()).decode()
            return
        async for line in response.aiter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            chunk = json.loads(line[6:])
            if "error" in chunk:
                seen.error = json.dumps(chunk["error"])
                continue
            seen.longest_gap_s = max(seen.longest_gap_s, time.monotonic() - last)
            last = time.monotonic()
            _take(seen, chunk)


def _take(seen: Seen, answer: dict[str, Any]) -> None:
    seen.usage = answer.get("usage") or seen.usage
    for choice in answer["choices"]:
        index = choice["index"]
        message = choice.get("delta") or choice.get("message") or {}
        seen.texts[index] = seen.texts.get(index, "") + (choice.get("text") or message.get("content") or "")
        if choice.get("finish_reason"):
            seen.finish[index] = choice["finish_reason"]
        if choice.get("logprobs"):
            seen.logprob_tokens += choice["logprobs"].get("tokens") or []


EMOJI = "Repeat these symbols again and again: 🦊🌍🚀 こんにちは 世界 🦊🌍🚀 こんにちは 世界 🦊🌍🚀"
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer"}},
    "required": ["name", "age"],
}


def mixed(tokens: int) -> list[tuple[str, str, dict[str, Any]]]:
    """Forty requests `(kind, path, body)` of every kind that a switch treats its own way: `tokens` long where they can
    be carried, a quarter of it where they are drained."""
    requests: list[tuple[str, str, dict[str, Any]]] = []
    for n in range(12):
        body = {
            "prompt": f"Story {n}: Once upon a time",
            "max_tokens": tokens,
            "ignore_eos": True,
            "stream": n % 2 == 0,
        }
        requests.append(("completion", "/v1/completions", body))
    for n in range(8):
        chat = [{"role": "user", "content": f"Write a long list of {n + 20} animals with one sentence each."}]
        body = {"messages": chat, "max_tokens": tokens, "ignore_eos": True, "stream": n % 2 == 0}
        requests.append(("chat", "/v1/chat/completions", body))
    for n in range(4):
        body = {"prompt": f"{n}. {EMOJI}", "max_tokens": tokens, "ignore_eos": True, "stream": n % 2 == 0}
        requests.append(("multi-byte", "/v1/completions", body))
    for n in range(4):
        body = {"prompt": f"Count: {n} 1 2 3 4 5", "max_tokens": tokens, "stop": [" 40", "\n40"], "stream": n % 2 == 0}
        requests.append(("stop string", "/v1/completions", body))
    for n in range(4):
        body = {
            "prompt": f"Tale {n}: there was",
            "max_tokens": tokens,
            "n": 2,
            "temperature": 0.5,  # vLLM refuses several choices at temperature 0
            "ignore_eos": True,
            "stream": n % 2 == 0,
        }
        requests.append(("two choices", "/v1/completions", body))
    for n in range(3):
        chat = [{"role": "user", "content": f"Invent person number {n}. Answer as JSON."}]
        schema = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}
        body = {"messages": chat, "max_tokens": tokens // 4, "response_format": schema, "stream": n == 0}
        requests.append(("JSON schema", "/v1/chat/completions", body))
    for n in range(2):
        body = {"prompt": f"Log {n}: it was", "max_tokens": tokens, "logprobs": 1, "ignore_eos": True, "stream": n == 0}
        requests.append(("logprobs", "/v1/completions", body))
    for n in range(3):
        body = {
            "prompt": f"Song {n}: la la",
            "max_tokens": tokens // 4,
            "temperature": 0.9,
            "seed": n,
            "ignore_eos": True,
            "presence_penalty": 0.5,
            "stream": n == 0,
        }
        requests.append(("penalty", "/v1/completions", body))
    return requests


async def ask_all(url: str, requests: list[tuple[str, str, dict[str, Any]]], http: httpx.AsyncClient) -> list[Seen]:
    return list(await asyncio.gather(*(ask(http, url, kind, path, body) for kind, path, body in requests)))
