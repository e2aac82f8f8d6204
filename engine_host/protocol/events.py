"""Events: what happened, in words, with a sequence number to resume from."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec


class Severity(StrEnum):
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class Event(msgspec.Struct, frozen=True, kw_only=True):
    seq: int
    """1 for the first event of a host process; no gaps."""
    at: float
    """Unix time by the host's clock."""
    kind: str
    """Dotted, stable, for scripts: `state.serving`, `engine.died`, `action.host.stop`."""
    severity: Severity = Severity.INFO
    text: str
    """One line for a person."""
    who: str = "host"
    """The login that caused it, or `host`."""
    data: dict[str, Any] = {}
