"""What a client is told that the gate does not let through."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from engine_host.gateway import come_back


@dataclass(frozen=True, slots=True)
class Refusal:
    """An answer in OpenAI's shape."""

    reason: str
    """As it is counted: `queue_full` `deadline` `shed` `class` `too_long` `too_large` `too_deep`."""
    message: str
    status: int = 429
    error_type: str = "rate_limit_error"
    param: str | None = None
    code: str | None = None
    """OpenAI's name for it, by which clients tell it from others; None: it has none but the status."""
    retry_after_s: float | None = None
    """None: it need not be sent again as it is."""

    def body(self) -> bytes:
        error = {
            "message": self.message,
            "type": self.error_type,
            "param": self.param,
            "code": self.code or self.status,
        }
        told: dict[str, Any] = {"error": error, "reason": self.reason, "retry_after_s": self.retry_after_s}
        return msgspec.json.encode(told)

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Of the body above, its length not among them."""
        headers = [(b"content-type", b"application/json")]
        if self.retry_after_s is not None:
            headers.append((b"retry-after", str(come_back.whole_seconds(self.retry_after_s)).encode()))
        return headers


def come_again(reason: str, text: str, known_s: float | None, hold_deadline_s: float) -> Refusal:
    """Of one that may be let in another time: in `known_s`, or nobody knows when."""
    retry_after_s = come_back.where_unknown_s(hold_deadline_s) if known_s is None else known_s
    unknown = " When there will be room is not known;" if known_s is None else ""
    again = f"{'send' if unknown else 'Send'} it again in {come_back.whole_seconds(retry_after_s)} s."
    return Refusal(reason, f"{text}{unknown} {again}", retry_after_s=retry_after_s)
