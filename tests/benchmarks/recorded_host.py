"""`engine-host` with every scheduler step written to a file, one JSON array a line.

    python -m tests.benchmarks.recorded_host FILE serve PROFILE ...

The host is the real one; only its telemetry store writes down what it is given. `Step` names the columns.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import IO, NamedTuple

from engine_host.engine.port import StepStats


class Step(NamedTuple):
    """One line."""

    at: float
    """Monotonic seconds."""
    kv: float | None
    running: int | None
    waiting: int | None
    prompt_tokens: int
    generation_tokens: int
    preemptions: int
    finished: int
    inflight: int
    """At the entry, in requests."""
    held: int
    ttft_s: list[float]


def read(path: Path) -> list[Step]:
    """All whole lines: the last one may be half written."""
    lines = path.read_text().splitlines()
    return [Step(*json.loads(line)) for line in lines if line.endswith("]")]


def main() -> int:
    from engine_host import cli, host
    from engine_host.gateway.entry import Entry
    from engine_host.gateway.gate import Gate
    from engine_host.telemetry.store import TelemetryStore

    out: IO[str] = Path(sys.argv[1]).open("w", buffering=1 << 16)  # noqa: SIM115 (open as long as the host lives)
    entries: list[Entry] = []

    class SeenEntry(Entry):
        def __init__(self, gate: Gate | None = None) -> None:
            super().__init__(gate)
            entries.append(self)

    class RecordedStore(TelemetryStore):
        def record(self, step: StepStats) -> None:
            super().record(step)
            entry = entries[0]
            line = Step(
                round(time.monotonic(), 4),
                None if step.kv_usage is None else round(step.kv_usage, 4),
                step.running,
                None if step.waiting is None else step.waiting + (step.waiting_deferred or 0),
                step.prompt_tokens,
                step.generation_tokens,
                step.preemptions,
                step.finished,
                entry.inflight,
                entry.held,
                [round(sample, 4) for sample in step.ttft_s],
            )
            out.write(json.dumps(line, separators=(",", ":")) + "\n")

        def sample_history(self, backlog):  # type: ignore[no-untyped-def]  # once a second
            super().sample_history(backlog)
            out.flush()

    host.Entry, host.TelemetryStore = SeenEntry, RecordedStore  # type: ignore[misc]
    return cli.main(sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
