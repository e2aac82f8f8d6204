"""What a dangerous action does, said with the numbers of this moment, before anyone agrees to it.

Used word for word by the command line and the TUI's dialog.
"""

from __future__ import annotations

from console import format as fmt
from engine_host.protocol.snapshot import Snapshot

METHOD_STOP = "host.stop"
METHOD_RESTART = "engine.restart"

HOST_DRAIN_S = 60.0
"""Assumed for the host's own drain setting when none is given."""

TEARDOWN_S = 60.0
"""Ending an engine takes 2-5 s when it ends by itself; by force, with a device to free, up to this."""

FIRST_START_S = 600.0
"""For a start that was never timed: the largest models load for minutes."""


def consequence(method: str, snapshot: Snapshot | None, drain_s: float | None = None) -> str:
    if snapshot is None:
        return "The host has sent no values yet, so what this would interrupt is unknown."
    patience = "the host's drain time" if drain_s is None else fmt.duration(drain_s)
    affected = (
        f"Affected: {_requests(snapshot)} requests. They get {patience} to finish; what still runs then is cut off."
    )
    if method == METHOD_STOP:
        api = fmt.clean(snapshot.host.http)
        return f"{affected} The engine and the API on {api} stay down until somebody starts them again."
    if method == METHOD_RESTART:
        took = snapshot.engine.start_took_s or snapshot.engine.start_expected_s
        downtime = "unknown, as no start was timed yet" if took is None else f"about {fmt.duration(took)}"
        return f"{affected} Then the engine starts anew; downtime {downtime}."
    raise ValueError(method)


def deadline_s(method: str, snapshot: Snapshot | None, drain_s: float | None = None) -> float:
    """How long the outcome may take to come before it counts as unknown."""
    wait_s = (HOST_DRAIN_S if drain_s is None else drain_s) + TEARDOWN_S
    if method == METHOD_RESTART:
        took = snapshot.engine.start_took_s or snapshot.engine.start_expected_s if snapshot is not None else None
        wait_s += FIRST_START_S if took is None else 3 * took
    return wait_s


def _requests(snapshot: Snapshot) -> str:
    queue = snapshot.queue
    parts = [f"{fmt.count(queue.running)} running", f"{fmt.count(queue.waiting)} waiting"]
    if queue.held:
        parts.append(f"{fmt.count(queue.held)} held")
    return ", ".join(parts)
