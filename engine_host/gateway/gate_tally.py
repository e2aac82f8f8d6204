"""What the gate has done since the host started."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from engine_host.protocol.snapshot import Percentiles
from engine_host.protocol.throttling import ClassCount, GateCounts


class Windows(Protocol):
    """Percentiles over sliding windows (`telemetry.latency.LatencyWindows`)."""

    def record(self, samples: Sequence[float]) -> None: ...
    def advance(self, second: int) -> None: ...
    def read(self) -> dict[str, Percentiles]: ...


class _OfClass:
    __slots__ = ("admitted", "refused")

    def __init__(self) -> None:
        self.admitted = self.refused = 0


class GateTally:
    """Times are seconds of the gate's clock. `waits` keeps how long those that were admitted had waited; None: none."""

    def __init__(self, waits: Windows | None) -> None:
        self._admitted = self._held = self._gone = self._truncated = self._segmented = 0
        self._refused: dict[str, int] = {}
        self._classes: dict[str, _OfClass] = {}
        self._waits = waits
        self._second = 0

    def admitted(self, class_name: str) -> None:
        self._admitted += 1
        self._class(class_name).admitted += 1

    def held(self) -> None:
        self._held += 1

    def waited(self, wait_s: float, now: float) -> None:
        """One that waited was admitted."""
        if self._waits is not None:
            self._keep_up(self._waits, now)
            self._waits.record((wait_s,))

    def gone(self) -> None:
        self._gone += 1

    def refused(self, reason: str, class_name: str | None = None) -> None:
        self._refused[reason] = self._refused.get(reason, 0) + 1
        if class_name is not None:
            self._class(class_name).refused += 1

    def reshaped(self, is_truncated: bool, is_segmented: bool) -> None:
        """One that goes to the app as another than it came."""
        self._truncated += is_truncated
        self._segmented += is_segmented

    @property
    def admitted_total(self) -> int:
        return self._admitted

    @property
    def refused_by_reason(self) -> dict[str, int]:
        return dict(self._refused)

    def counts(
        self, inflight: int, oldest_held_s: float | None, held_by_class: Sequence[tuple[str, int]], now: float
    ) -> GateCounts:
        """`held_by_class`: of the classes there are now, lowest first."""
        if self._waits is not None:
            self._keep_up(self._waits, now)
        return GateCounts(
            inflight=inflight,
            held=sum(held for _, held in held_by_class),
            oldest_held_s=oldest_held_s,
            admitted_total=self._admitted,
            held_total=self._held,
            gone_total=self._gone,
            refused_total=sum(self._refused.values()),
            refused_by_reason=dict(self._refused),
            truncated_total=self._truncated,
            segmented_total=self._segmented,
            hold_wait={} if self._waits is None else self._waits.read(),
            classes=[
                ClassCount(
                    name=name,
                    held=held,
                    admitted_total=self._class(name).admitted,
                    refused_total=self._class(name).refused,
                )
                for name, held in held_by_class
            ],
        )

    def _keep_up(self, waits: Windows, now: float) -> None:
        """Once a second: it sorts what was recorded, which costs more than to record it."""
        second = int(now)
        if second != self._second:
            waits.advance(second)
            self._second = second

    def _class(self, name: str) -> _OfClass:
        own = self._classes.get(name)
        if own is None:
            own = self._classes[name] = _OfClass()
        return own
