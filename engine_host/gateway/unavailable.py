"""Why no engine takes a request, and how a client is told."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec


@dataclass(frozen=True)
class Unavailable:
    """`state` is the host's; `retry_after_s` is None where no honest guess exists."""

    state: str
    message: str
    retry_after_s: float | None = None


def unavailable_body(why: Unavailable) -> bytes:
    """The error body in OpenAI's shape, so that client libraries show the message."""
    error = {"message": why.message, "type": "service_unavailable", "param": None, "code": 503}
    return msgspec.json.encode({"error": error, "state": why.state})
