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
    """Written by `Lifecycle.run` alone and by what it calls, but for what closes the gate; its states are tabulated
    there."""

    def __init__(self, on_event: EventSink) -> None:
        self.now = State.STARTING
        self.since = time.time()
        self.version = 1
        """Counts the changes of `shown`: whoever acts on a state names the version that he saw."""
        self._closed: State | None = None
        self._on_event = on_event

    @property
    def shown(self) -> State:
        """What everybody is told: an engine that serves behind a gate which is closed serves nobody new."""
        return self._closed if self._closed is not None and self.now is State.SERVING else self.now

    def close_gate(self, closed: State | None) -> None:
        """`PAUSED` or `DRAINING` at the gate, by an operator; None: open. Told by whoever closes it."""
        was, self._closed = self.shown, closed
        if self.shown is not was:
            self.since = time.time()
            self.version += 1

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
        if self.shown is not state:
            text += f"; still {self.shown} at the gate, by hand"
        self._on_event(kind or f"state.{self.shown}", text, severity=severity, who=who, data=dict(data or {}))
