"""One figure that the controller watches: its thresholds, and for how long it has been beyond them.

What is unknown (None) is not 0: it is neither over a threshold nor in the way of those that are below theirs.
"""

from __future__ import annotations

import math

from engine_host.profiles.throttle_table import Auto
from engine_host.protocol.throttling import AutoGauge
from engine_host.throttle.gauges import PREEMPTION_WINDOW_S, TTFT_WINDOW_S, Gauges


class Watch:
    """Times are those of `Gauges.at`."""

    def __init__(self, name: str, enter: float | None, leave: float | None, lag_s: float = 0.0) -> None:
        """`lag_s`: over how long the figure was taken, so that it speaks of the past for so long after a change.
        `leave` None: the same as `enter`."""
        self.name = name
        self.enter = enter
        self.leave = enter if leave is None else leave
        self.value: float | None = None
        self._lag_s = lag_s
        self._over_since: float | None = None
        self._calm_since: float | None = None

    def see(self, value: float | None, at: float) -> None:
        self.value = value
        if self.enter is None or self.leave is None:
            return
        if value is None or value <= self.enter:
            self._over_since = None
        elif self._over_since is None:
            self._over_since = at
        if value is not None and value > self.leave:
            self._calm_since = None
        elif self._calm_since is None:
            self._calm_since = at

    def forget(self) -> None:
        """What was seen no longer counts: dwell times begin anew."""
        self._over_since = self._calm_since = None

    @property
    def is_over(self) -> bool:
        return self._over_since is not None

    @property
    def is_calm(self) -> bool:
        """At or below `leave`, unknown, or not watched."""
        return self.enter is None or self._calm_since is not None

    def over_for(self, at: float, since: float = -math.inf) -> float | None:
        """Seconds above `enter`, counted from `since` and the figure's own lag after it; None: it is not."""
        if self._over_since is None:
            return None
        return at - max(self._over_since, since + self._lag_s)

    def calm_for(self, at: float) -> float:
        """Seconds at or below `leave`, or unknown; 0: it is above. A figure that is not watched is always calm."""
        if self.enter is None:
            return math.inf
        return 0.0 if self._calm_since is None else at - self._calm_since

    def as_gauge(self, at: float) -> AutoGauge:
        over_for_s = self.over_for(at)
        return AutoGauge(name=self.name, value=self.value, enter=self.enter, leave=self.leave, over_for_s=over_for_s)


class Watches:
    """All of them, in the order in which they are told."""

    def __init__(self, settings: Auto) -> None:
        self.kv = Watch("kv", settings.kv_enter, settings.kv_leave)
        self.waiting = Watch("waiting", settings.waiting_enter, settings.waiting_leave)
        self.preemptions = Watch(
            "preemptions", settings.preemptions_enter, settings.preemptions_leave, PREEMPTION_WINDOW_S
        )
        self.ttft_p95 = Watch("ttft_p95", settings.ttft_p95_enter_s, settings.ttft_p95_leave_s, TTFT_WINDOW_S)
        self.all = (self.kv, self.waiting, self.preemptions, self.ttft_p95)

    def see(self, gauges: Gauges) -> None:
        self.kv.see(gauges.kv, gauges.at)
        self.waiting.see(gauges.waiting, gauges.at)
        self.preemptions.see(gauges.preemptions_per_s, gauges.at)
        self.ttft_p95.see(gauges.ttft_p95_s, gauges.at)

    def forget(self) -> None:
        for watch in self.all:
            watch.forget()

    def over(self, at: float, since: float, dwell_s: float) -> list[tuple[Watch, float]]:
        """Those above their threshold for `dwell_s`, each with its time; one is enough."""
        timed = [(watch, watch.over_for(at, since)) for watch in self.all if watch.is_over]
        return [(watch, over_s) for watch, over_s in timed if over_s is not None and over_s >= dwell_s]

    def calm_for(self, at: float) -> float:
        """How long all of them have been calm."""
        return min(watch.calm_for(at) for watch in self.all)

    @property
    def are_known(self) -> bool:
        """At least one says something."""
        return any(watch.enter is not None and watch.value is not None for watch in self.all)
