"""A request that is answered in windows: ordinary requests to the app, one after the other, whose answers become one.

The windows of a streamed answer are forwarded as they come, under the first one's id; what ends each of them but the
last is left out. Usage is summed. An error in a window ends the answer with it; a client that hangs up is told to the
app as it would be without windows, and no further window begins.
"""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from typing import Any, Final

import msgspec

from engine_host.engine.port import AsgiApp, Receive, Scope, Send

BETWEEN_ANSWERS: Final = "\n\n"
"""Put between the answers of two windows, so that the last word of one and the first of the next stay two."""

Json = dict[str, Any]
Message = MutableMapping[str, Any]
Header = tuple[bytes, bytes]


def segmented(app: AsgiApp, requests: Sequence[Json], headers: Sequence[Header]) -> AsgiApp:
    """The app that answers with `requests`, the windows of one, and tells `headers` with the answer."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        client = _Client(receive)
        kind = _Streamed if requests[0].get("stream") else _Whole
        await kind(app, scope, client, send, list(headers)).answer(requests)

    return answer


class _Client:
    """Whether it is still there, which only its `receive` tells."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self.is_gone = False

    async def disconnect(self) -> Message:
        """Returns when it hangs up. May be cancelled and asked for again."""
        while not self.is_gone:
            message = await self._receive()
            self.is_gone = message["type"] == "http.disconnect"
        return {"type": "http.disconnect"}


class _WindowFailedError(Exception):
    """A window has been answered with an error."""

    def __init__(self, start: Message, body: bytes) -> None:
        super().__init__(start["status"])
        self.start = start
        self.body = body


class _Run:
    """One request's way through its windows."""

    def __init__(self, app: AsgiApp, scope: Scope, client: _Client, send: Send, headers: list[Header]) -> None:
        self._app = app
        self._scope = scope
        self._client = client
        self._send = send
        self._headers = headers

    async def _run(self, request: Json, send: Send) -> None:
        """Have the app answer one window into `send`."""
        body = msgspec.json.encode(request)
        unread = [body]

        async def receive() -> Message:
            if unread:
                return {"type": "http.request", "body": unread.pop(), "more_body": False}
            return await self._client.disconnect()

        await self._app(self._window_scope(len(body)), receive, send)

    def _window_scope(self, length: int) -> Scope:
        headers = [(name, value) for name, value in self._scope["headers"] if name not in _BODY_HEADERS]
        headers += [(b"content-type", b"application/json"), (b"content-length", str(length).encode())]
        # Of its own: the app writes its state and its route into the scope.
        return {**self._scope, "headers": headers, "state": dict(self._scope.get("state") or {})}

    async def _pass_on(self, failed: _WindowFailedError, place: str) -> None:
        """An error before anything of the answer was sent."""
        body = _with_place(failed.body, place)
        headers = [*_without_length(failed.start.get("headers", ())), *self._headers]
        headers.append((b"content-length", str(len(body)).encode()))
        await self._send({"type": "http.response.start", "status": failed.start["status"], "headers": headers})
        await self._send({"type": "http.response.body", "body": body})


class _Whole(_Run):
    """The answers are joined when the last one is there."""

    async def answer(self, requests: Sequence[Json]) -> None:
        joined: Json | None = None
        start: Message = {}
        for at, request in enumerate(requests):
            try:
                start, answer = await self._answer_of(request)
            except _WindowFailedError as failed:
                if not self._client.is_gone:
                    await self._pass_on(failed, f"window {at + 1} of {len(requests)}")
                return
            if self._client.is_gone:
                return
            joined = answer if joined is None else _joined(joined, answer)
        body = msgspec.json.encode(joined)
        headers = [*_without_length(start.get("headers", ())), *self._headers]
        headers.append((b"content-length", str(len(body)).encode()))
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        await self._send({"type": "http.response.body", "body": body})

    async def _answer_of(self, request: Json) -> tuple[Message, Json]:
        start: Message = {"status": 500}
        parts: list[bytes] = []

        async def take(message: Message) -> None:
            nonlocal start
            if message["type"] == "http.response.start":
                start = message
            else:
                parts.append(message.get("body", b""))

        await self._run(request, take)
        body = b"".join(parts)
        answer = _decoded(body)
        if start["status"] != 200 or answer is None or not answer.get("choices"):
            raise _WindowFailedError(start, body)
        return start, answer


class _Streamed(_Run):
    """The answers are forwarded event by event."""

    _heading: Json | None = None
    """What every chunk has in common, once the first has told it."""
    _has_started = False

    async def answer(self, requests: Sequence[Json]) -> None:
        options = requests[0].get("stream_options") or {}
        if not isinstance(options, dict):
            await self._run(requests[0], self._send)  # vLLM says itself what is wrong with them
            return
        wants_usage = bool(options.get("include_usage"))
        usage: Json = {}
        for at, request in enumerate(requests):
            window = _StreamedWindow(is_first=not at, is_last=at == len(requests) - 1)
            if wants_usage and options.get("continuous_usage_stats"):
                window.usage_before = usage
            await self._run({**request, "stream_options": {**options, "include_usage": True}}, self._forwarding(window))
            if self._client.is_gone:
                return
            if window.error is not None:
                await self._fail(window, f"window {at + 1} of {len(requests)}")
                return
            usage = _summed(usage, window.usage)
        if wants_usage:
            await self._event({**(self._heading or {}), "choices": [], "usage": usage})
        await self._end(b"")

    def _forwarding(self, window: _StreamedWindow) -> Send:
        async def forward(message: Message) -> None:
            if message["type"] == "http.response.start":
                window.start = message
                if message["status"] == 200 and not self._has_started:
                    self._has_started = True
                    await self._send({**message, "headers": [*message.get("headers", ()), *self._headers]})
                return
            for chunk in window.chunks(message):
                if self._heading is None:
                    self._heading = {name: chunk[name] for name in _HEADING if name in chunk}
                await self._event({**chunk, **self._heading})

        return forward

    async def _fail(self, window: _StreamedWindow, place: str) -> None:
        error = window.error or b""
        if self._has_started:
            await self._end(b"data: " + _with_place(error, place) + b"\n\n")
        else:
            await self._pass_on(_WindowFailedError(window.start, error), place)

    async def _event(self, chunk: Json) -> None:
        event = b"data: " + msgspec.json.encode(chunk) + b"\n\n"
        await self._send({"type": "http.response.body", "body": event, "more_body": True})

    async def _end(self, event: bytes) -> None:
        await self._send({"type": "http.response.body", "body": event + b"data: [DONE]\n\n", "more_body": False})


class _StreamedWindow:
    """What the app streams for one window, and what of it the client gets."""

    def __init__(self, *, is_first: bool, is_last: bool) -> None:
        self._is_first = is_first
        self._is_last = is_last
        self._unread = b""
        self._begun: set[str] = set()
        """The texts of this answer that the client has something of."""
        self._has_ended = False
        self.start: Message = {"status": 500}
        self.usage: Json = {}
        self.usage_before: Json | None = None
        """Of the windows before it, to be added to each chunk's; None: chunks tell none."""
        self._error: bytes | None = None

    @property
    def error(self) -> bytes | None:
        """Body of the error that it has ended with, or has not ended properly."""
        if self._error is None and self.start["status"] != 200:
            return self._unread
        return b"the answer broke off" if self._error is None and not self._has_ended else self._error

    def chunks(self, message: Message) -> list[Json]:
        """Those of the next part of the body that are to be forwarded."""
        self._unread += message.get("body", b"")
        if self.start["status"] != 200:
            return []
        *events, self._unread = self._unread.split(b"\n\n")
        found = [self._read(data[len(b"data:") :]) for event in events if (data := event.strip()).startswith(b"data:")]
        return [chunk for chunk in found if chunk is not None]

    def _read(self, data: bytes) -> Json | None:
        chunk = _decoded(data)
        if chunk is None or self._error is not None:
            return None
        if "error" in chunk:
            self._error = data
            return None
        usage = chunk.pop("usage", None)
        if not chunk.get("choices"):
            self.usage = usage or self.usage
            return None
        if usage is not None and self.usage_before is not None:
            chunk["usage"] = _summed(self.usage_before, usage)
        choice = chunk["choices"][0]
        self._has_ended = self._has_ended or choice.get("finish_reason") is not None
        if not self._is_first and not self._joins(choice):
            return None
        if not self._is_last:
            choice.update({name: None for name in ("finish_reason", "stop_reason") if name in choice})
        return chunk

    def _joins(self, choice: Json) -> bool:
        """Put what is between two answers before the first text of this one. False: it says nothing that the client has
        not been told."""
        texts = choice if "text" in choice else choice.setdefault("delta", {})
        texts.pop("role", None)
        names = [name for name in ("text", *_MESSAGE_TEXTS) if texts.get(name)]
        if self._has_ended and not self._begun and not names:
            names = ["text" if texts is choice else "content"]
        for name in names:
            if name not in self._begun:
                texts[name] = BETWEEN_ANSWERS + (texts.get(name) or "")
                self._begun.add(name)
        return bool(names) or self._has_ended or bool(self._begun)


_HEADING = ("id", "object", "created", "model")
"""Of a chunk, what is the same in all of an answer."""


def _decoded(body: bytes) -> Json | None:
    try:
        decoded = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return None
    return decoded if isinstance(decoded, dict) else None


def _joined(former: Json, answer: Json) -> Json:
    """`answer` behind `former`, under the former's id; how it ended is the latter's."""
    ours, theirs = former["choices"][0], answer["choices"][0]
    choice = dict(theirs)
    if "text" in theirs:
        choice["text"] = ours["text"] + BETWEEN_ANSWERS + theirs["text"]
    else:
        choice["message"] = dict(theirs["message"])
        for name in _MESSAGE_TEXTS:
            told = [text for text in (ours["message"].get(name), theirs["message"].get(name)) if text is not None]
            if told:
                choice["message"][name] = BETWEEN_ANSWERS.join(told)
    return {
        **answer,
        "id": former["id"],
        "created": former["created"],
        "choices": [choice],
        "usage": _summed(former.get("usage") or {}, answer.get("usage") or {}),
    }


_MESSAGE_TEXTS = ("content", "reasoning", "reasoning_content")


def _summed(one: Json, other: Json) -> Json:
    """Counts added, also those inside of details."""
    total = {**one, **other}
    for name in one.keys() & other.keys():
        ours, theirs = one[name], other[name]
        if isinstance(ours, dict) and isinstance(theirs, dict):
            total[name] = _summed(ours, theirs)
        elif isinstance(ours, int) and isinstance(theirs, int):
            total[name] = ours + theirs
        else:
            total[name] = ours if theirs is None else theirs
    return total


def _with_place(body: bytes, place: str) -> bytes:
    """An error body that says in which window it happened."""
    answer = _decoded(body)
    error = answer.get("error") if answer is not None else None
    if not isinstance(error, dict):
        text = body.decode(errors="replace") or "no answer"
        return msgspec.json.encode({"error": {"message": f"{place}: {text}", "type": "server_error", "code": 500}})
    return msgspec.json.encode({**(answer or {}), "error": {**error, "message": f"{place}: {error.get('message')}"}})


def _without_length(headers: Sequence[Header]) -> list[Header]:
    return [(name, value) for name, value in headers if name.lower() != b"content-length"]


_BODY_HEADERS = frozenset({b"content-type", b"content-length", b"content-encoding", b"transfer-encoding"})
