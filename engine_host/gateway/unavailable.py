"""Why no engine takes a request, and how a client is told."""

from __future__ import annotations

import time
from dataclasses import dataclass

import msgspec

from engine_host.gateway import come_back


@dataclass(frozen=True)
class Unavailable:
    """`state` is the host's; `retry_after_s` is None where nothing is known."""

    state: str
    message: str
    retry_after_s: float | None = None
    reason: str | None = None
    """Of the engine's failure, where one is known; the message has it too."""
    began: float | None = None
    """When that began which takes `retry_after_s` in all, by the monotonic clock; None: it is told as it is."""

    @property
    def left_s(self) -> float:
        """When to come back, as it is told now."""
        if self.retry_after_s is None:
            return come_back.UNKNOWN_S
        if self.began is None:
            return max(come_back.LEAST_S, self.retry_after_s)
        return come_back.left_s(self.retry_after_s, time.monotonic() - self.began)


def unavailable_body(why: Unavailable) -> bytes:
    """The error body in OpenAI's shape, so that client libraries show the message."""
    error = {"message": why.message, "type": "service_unavailable", "param": None, "code": 503}
    return msgspec.json.encode({"error": error, "state": why.state, "reason": why.reason, "retry_after_s": why.left_s})


def unavailable_headers(why: Unavailable) -> dict[str, str]:
    """Those of the body above."""
    return {"content-type": "application/json", "retry-after": str(come_back.whole_seconds(why.left_s))}
