"""A stream of the Responses API whose answer fails: it ends with an error event.

vLLM's other streams tell their clients themselves. In this one an error is no event that vLLM knows, fails a check of
its own, and would leave a connection that was cut without a word.
"""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from typing import Any

import msgspec

from engine_host.engine.port import Send

logger = logging.getLogger(__name__)

PATH = "/v1/responses"
_UNTOLD = "The server could not finish this answer."


class ResponsesStream:
    """Watches one answer that goes to `send`. Only answers of `PATH` are watched: it costs a call for every event."""

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
        # What is meant for a client carries the status that it stands for; anything else tells of our insides.
        status = int(getattr(error, "http_status", 500))
        text = str(error) if hasattr(error, "http_status") else _UNTOLD
        logger.warning("a stream of %s ended early: %s: %s", PATH, type(error).__name__, error)
        # The fields of the API's own error event; `error` beside them is what OpenAI's client raises.
        event = {
            "type": "error",
            "code": str(status),
            "message": text,
            "param": None,
            "sequence_number": self._events,
            "error": {"message": text, "type": "server_error", "param": None, "code": status},
        }
        body = b"event: error\ndata: " + msgspec.json.encode(event) + b"\n\n"
        await self.send({"type": "http.response.body", "body": body})
        return True
