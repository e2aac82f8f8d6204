"""The dials of a scheduler, by name. Apart from `sample`, as what only names them need not load numpy."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class DialName(StrEnum):
    """Limits of the scheduler that can be changed while it runs."""

    MAX_ACTIVE_SEQS = "max_active_seqs"
    """Requests admitted to run at once; those that run already go on."""
    MAX_SCHEDULED_TOKENS = "max_scheduled_tokens"
    """Prompt and generated tokens of one step."""
    SPECULATIVE_TOKENS = "speculative_tokens"
    """Drafted a request and step: K. 0 drafts none."""


@dataclass(frozen=True, slots=True)
class DialRange:
    """What a dial of one engine takes: `low` to `high`, both included; it was started with `start`."""

    low: int
    high: int
    start: int

    def nearest(self, value: int) -> int:
        """`value`, or the limit that it lies beyond."""
        return min(max(value, self.low), self.high)
