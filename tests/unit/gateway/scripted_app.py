"""An application that answers as vLLM does, with a tokenizer that is easy to count: four letters of a word a token."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, MutableMapping
from typing import Any

from engine_host.engine.port import Receive, Scope, Send

Json = dict[str, Any]

_TOKEN = re.compile(r"\s*\S{1,4}|\s+")


def tokens_of(text: str) -> list[str]:
    return _TOKEN.findall(text)


class ScriptedApp:
    """Its answers end with how many windows it has answered; `context` is the longest prompt and answer."""

    def __init__(self, context: int = 64) -> None:
        self.context = context
        self.questions: list[Json] = []
        """Bodies that were sent to /tokenize."""
        self.requests: list[Json] = []
        """Bodies that were to be answered."""
        self.scopes: list[Scope] = []
        self.tokenize_status = 200
        self.error_at: int | None = None
        """The request, from 0, that is answered with an error."""
        self.breaks_off_at: int | None = None
        """The request, from 0, that ends with an error in the midst of its stream."""
        self.begun = asyncio.Event()
        self.go_on: asyncio.Event | None = None
        """Waited for, beside the client's hanging up, before a request is answered."""
        self.hung_up = 0
        self.special_tokens = 1

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        message = await receive()
        length = dict(scope["headers"]).get(b"content-length")
        assert length is not None and int(length) == len(message["body"])
        body = json.loads(message["body"])
        self.scopes.append(scope)
        if scope["path"].endswith("/tokenize"):
            self.questions.append(body)
            await _answer(
                send, self.tokenize_status, {"count": self._count(body), "tokens": [1, 2], "max_model_len": 64}
            )
            return
        at = len(self.requests)
        self.requests.append(body)
        self.begun.set()
        if self.go_on is not None and await _hangs_up_first(receive, self.go_on):
            self.hung_up += 1
            return
        prompt_tokens = self._count(body)
        if at == self.error_at or prompt_tokens >= self.context:
            await _answer(send, 400, {"error": {"message": "no good", "type": "BadRequestError", "code": 400}})
        elif body.get("stream"):
            await self._stream(send, body, at, prompt_tokens, is_chat="messages" in body)
        else:
            await _answer(send, 200, self._whole(body, at, prompt_tokens))

    def _count(self, body: Json) -> int:
        if "messages" in body:
            return 3 + sum(3 + len(tokens_of(_text(message))) for message in body["messages"])
        prompt = body["prompt"]
        if isinstance(prompt, list):
            return len(prompt)
        return len(tokens_of(prompt)) + (self.special_tokens if body.get("add_special_tokens", True) else 0)

    def _whole(self, body: Json, at: int, prompt_tokens: int) -> Json:
        text = f"answer {at}"
        choice: Json = {"index": 0, "finish_reason": "stop" if at else "length", "stop_reason": None}
        choice |= {"message": {"role": "assistant", "content": text}} if "messages" in body else {"text": text}
        return {
            "id": f"id-{at}",
            "created": 100 + at,
            "model": "m",
            "choices": [choice],
            "usage": _usage(prompt_tokens),
        }

    async def _stream(self, send: Send, body: Json, at: int, prompt_tokens: int, *, is_chat: bool) -> None:
        headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})

        async def event(choice: Json | None, usage: Json | None = None) -> None:
            chunk = {"id": f"id-{at}", "object": "chunk", "created": 100 + at, "model": "m", "choices": []}
            if choice is not None:
                chunk["choices"] = [{"index": 0, "finish_reason": None, **choice}]
            options = body.get("stream_options") or {}
            if usage is not None or options.get("continuous_usage_stats"):
                chunk["usage"] = usage or _usage(prompt_tokens)
            await _part(send, b"data: " + json.dumps(chunk).encode() + b"\n\n")

        if is_chat:
            await event({"delta": {"role": "assistant", "content": ""}})
        for text in ("answer", f" {at}"):
            await event({"delta": {"content": text}} if is_chat else {"text": text})
        if at == self.breaks_off_at:
            await _part(send, b'data: {"error": {"message": "engine trouble", "code": 500}}\n\n')
        else:
            last = {"finish_reason": "stop" if at else "length", "stop_reason": None}
            await event({"delta": {}, **last} if is_chat else {"text": "", **last})
            if (body.get("stream_options") or {}).get("include_usage"):
                await event(None, _usage(prompt_tokens))
        await _part(send, b"data: [DONE]\n\n")
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _usage(prompt_tokens: int) -> Json:
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": 2,
        "total_tokens": prompt_tokens + 2,
        "prompt_tokens_details": {"cached_tokens": 1},
    }


def _text(message: Json) -> str:
    content = message.get("content") or ""
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


async def _hangs_up_first(receive: Receive, go_on: asyncio.Event) -> bool:
    """As vLLM notices it: with another task, which it leaves to itself when it is done."""
    hanging_up, going_on = asyncio.create_task(_disconnect(receive)), asyncio.create_task(go_on.wait())
    await asyncio.wait({hanging_up, going_on}, return_when=asyncio.FIRST_COMPLETED)
    is_gone = hanging_up.done()
    for task in (hanging_up, going_on):
        task.cancel()
    return is_gone


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _answer(send: Send, status: int, body: Json) -> None:
    encoded = json.dumps(body).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(encoded)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": encoded})


async def _part(send: Send, body: bytes) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": True})


class Client:
    """What a request's client has sent and got."""

    def __init__(self, body: bytes) -> None:
        self._unread = [{"type": "http.request", "body": body, "more_body": False}]
        self._gone = asyncio.Event()
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = b""
        self.is_complete = False
        self.on_part: Callable[[], None] = lambda: None
        """Called at every part of the answer."""

    async def receive(self) -> MutableMapping[str, Any]:
        if self._unread:
            return self._unread.pop()
        await self._gone.wait()
        return {"type": "http.disconnect"}

    def hang_up(self) -> None:
        self._gone.set()

    async def send(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            assert not self.status
            self.status = message["status"]
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
            return
        assert self.status and not self.is_complete
        self.body += message["body"]
        self.is_complete = not message.get("more_body", False)
        self.on_part()

    @property
    def json(self) -> Any:
        assert self.is_complete
        assert int(self.headers["content-length"]) == len(self.body)
        return json.loads(self.body)

    @property
    def events(self) -> list[Any]:
        """Of a stream that has ended as it should: with `[DONE]`, which is left out."""
        assert self.is_complete
        *events, done, rest = self.body.split(b"\n\n")
        assert (done, rest) == (b"data: [DONE]", b"")
        return [json.loads(event.removeprefix(b"data: ")) for event in events]
