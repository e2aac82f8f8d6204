"""Streams of two APIs whose answer fails: they end with an error event that says so.

vLLM tells the clients of its other streams itself. In one of the Responses API an error is no event that it knows,
fails a check of its own, and the connection would be cut without a word. One of the Messages API is made from a stream
of chat completions, and an error in that, unless it is meant for the client (`engine.vllm.app`), is read as a piece of
the answer, which it is not: the client would be told of the fields that are missing in it. Watching costs a call for
every event, so other streams are not watched.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

import msgspec

from engine_host.engine.port import Send

logger = logging.getLogger(__name__)

_UNTOLD = "The server could not finish this answer."
_NO_PIECE = (b"event: error\n", b"ChatCompletionStreamResponse")
"""Both are in an event that tells of an error which was read as a piece of an answer."""


class MessagesStream:
    """One answer that goes to `send`."""

    def __init__(self, send: Send) -> None:
        self._send = send

    async def send(self, message: MutableMapping[str, Any]) -> None:
        body = message.get("body", b"")
        if body.startswith(_NO_PIECE[0]) and _NO_PIECE[1] in body:
            error = {"type": "error", "error": {"type": "api_error", "message": _UNTOLD}}
            message = {**message, "body": _event(error)}
        await self._send(message)

    async def end(self, error: Exception) -> bool:
        """False: what gets here is the server's to answer."""
        return False


class ResponsesStream:
    """One answer that goes to `send`."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._is_stream = self._is_open = False
        self._events = 0

    async def send(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            headers = {name.lower(): value for name, value in message.get("headers", ())}
            self._is_open = self._is_stream = headers.get(b"content-type", b"").startswith(b"text/event-stream")
        elif self._is_stream:
            self._is_open = message.get("more_body", False)
            self._events += 1
        await self._send(message)

    async def end(self, error: Exception) -> bool:
        """Tell the client of `error`. False: there is no stream under way."""
        if not self._is_open:
            return False
        meant = _meant_for_a_client(error)
        status, text = (500, _UNTOLD) if meant is None else (int(getattr(meant, "http_status", 500)), str(meant))
        logger.warning("a stream of the Responses API ended early: %s: %s", type(error).__name__, error)
        # The fields of the API's own error event; `error` beside them is what OpenAI's client raises.
        event = {
            "type": "error",
            "code": str(status),
            "message": text,
            "param": None,
            "sequence_number": self._events,
            "error": {"message": text, "type": "server_error", "param": None, "code": status},
        }
        await self.send({"type": "http.response.body", "body": _event(event)})
        return True


WATCHED: Mapping[str, Callable[[Send], MessagesStream | ResponsesStream]] = {
    "/v1/messages": MessagesStream,
    "/v1/responses": ResponsesStream,
}
"""By path."""


def _meant_for_a_client(error: BaseException) -> BaseException | None:
    """Such an error carries the status that it stands for; anything else tells of our insides. In a stream that has
    begun, Starlette raises another one from it."""
    cause: BaseException | None = error
    while cause is not None and not hasattr(cause, "http_status"):
        cause = cause.__cause__
    return cause


def _event(content: dict[str, Any]) -> bytes:
    return b"event: error\ndata: " + msgspec.json.encode(content) + b"\n\n"
