"""Where the host stands: the record that every change of state goes through, told as an event."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from engine_host.protocol.events import Severity
from engine_host.protocol.snapshot import State

EventSink = Callable[..., Any]
"""`EventLog.append`: (kind, text, *, severity, who, data)."""


class HostState:
    """Written by `Lifecycle.run` alone and by what it calls; its states are tabulated there."""

    def __init__(self, on_event: EventSink) -> None:
        self.now = State.STARTING
        self.since = time.time()
        self.version = 1
        """Counts the changes: whoever acts on a state names the version that he saw."""
        self._on_event = on_event

    def tell(self, kind: str, text: str, severity: Severity, data: Mapping[str, Any]) -> None:
        """An event that leaves the state as it is."""
        self._on_event(kind, text, severity=severity, who="host", data=dict(data))

    def enter(
        self,
        state: State,
        text: str,
        *,
        kind: str | None = None,
        severity: Severity = Severity.INFO,
        who: str = "host",
        data: Mapping[str, Any] | None = None,
    ) -> None:
        """Readers see the new state before the event."""
        self.now = state
        self.since = time.time()
        self.version += 1
        self._on_event(kind or f"state.{state}", text, severity=severity, who=who, data=dict(data or {}))
