"""The limits that the gate works with, in one value that is replaced whole."""

from __future__ import annotations

from dataclasses import dataclass

DEFAULT_HOLD_QUEUE = 256
DEFAULT_HOLD_DEADLINE_S = 30.0


@dataclass(frozen=True, slots=True)
class Limits:
    """In force now; None: no such limit."""

    max_inflight: int | None = None
    request_rate: float | None = None
    """Choices a second."""
    request_burst: int | None = None
    """None: what `request_rate` lets through in a second, at least one."""
    prompt_token_rate: float | None = None
    prompt_token_burst: int | None = None
    """None: what `prompt_token_rate` lets through in a second. A longer prompt than the burst passes when the bucket is
    full, and is owed."""
    hold_queue: int = DEFAULT_HOLD_QUEUE
    hold_deadline_s: float = DEFAULT_HOLD_DEADLINE_S
    min_class: str | None = None
    paused: bool = False
    draining: bool = False
    opens_in_s: float | None = None
    """When the pause or the drain ends by itself, counted from when this was put in force: an honest `Retry-After`."""
    later: tuple[tuple[float, Limits], ...] = ()
    """What comes into force by itself, soonest first, and in how many seconds, counted likewise."""

    @property
    def is_closed(self) -> bool:
        """Nothing is let in."""
        return self.paused or self.draining
