"""Why no engine takes a request, and how a client is told."""

from __future__ import annotations

import math
from dataclasses import dataclass

import msgspec


@dataclass(frozen=True)
class Unavailable:
    """`state` is the host's; `retry_after_s` is None where no honest guess exists."""

    state: str
    message: str
    retry_after_s: float | None = None
    reason: str | None = None
    """Of the engine's failure, where one is known; the message has it too."""


def unavailable_body(why: Unavailable) -> bytes:
    """The error body in OpenAI's shape, so that client libraries show the message."""
    error = {"message": why.message, "type": "service_unavailable", "param": None, "code": 503}
    return msgspec.json.encode(
        {"error": error, "state": why.state, "reason": why.reason, "retry_after_s": why.retry_after_s}
    )


def unavailable_headers(why: Unavailable) -> dict[str, str]:
    """Those of the body above."""
    headers = {"content-type": "application/json"}
    if why.retry_after_s is not None:
        headers["retry-after"] = str(max(1, math.ceil(why.retry_after_s)))
    return headers
