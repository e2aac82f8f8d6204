"""Tells as events that requests stand still, and that they run again: once each."""

from __future__ import annotations

from engine_host.engine.host_state import EventSink
from engine_host.protocol.events import Severity
from engine_host.protocol.snapshot import Queue

_REMEDIES = {
    "hung": "`vllm-console restart` starts the engine anew",
    "stuck": "`vllm-console requests list` names it, `requests abort` ends it",
}
_AMID_A_SWITCH = "the switch under way brings a new engine, `vllm-console switch --cancel` ends it"
"""In place of those, as they are refused then."""


class StallWatch:
    def __init__(self, on_event: EventSink) -> None:
        self._on_event = on_event
        self._told: str | None = None
        """The `stalled_reason` that was told last, while it stands."""

    def look(self, queue: Queue, *, can_run: bool, is_switching: bool) -> None:
        """To be called once a second. `can_run` is false while no engine could run a request, which is told elsewhere:
        then nothing stalls, and that it flows again would be untrue."""
        if not can_run:
            self._told = None
            return
        reason = queue.stalled_reason
        if reason == self._told:
            return
        if reason is not None:
            remedy = _AMID_A_SWITCH if is_switching else _REMEDIES[reason]
            text = f"{reason.upper()}: {queue.stalled_text}; {remedy}"
            self._on_event(f"engine.{reason}", text, severity=Severity.ERROR)
        else:
            self._on_event("engine.flows", f"no longer {self._told}: requests run again")
        self._told = reason
