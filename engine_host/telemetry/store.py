"""What the engine counted, kept in bounded rings: one row a second for five minutes.

`record` is called at every scheduler step on the event loop and only adds integers and appends; rates, ratios and
percentiles are worked out when somebody looks. One writer, one event loop, no locks. Memory does not depend on load
or on time.

Counters are summed over engines and go on across engine restarts, since they add up the deltas of steps. Rates and
ratios speak of the engine that serves: their window begins no earlier than it did.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

import numpy as np

from engine_host.engine.port import Backlog, SpeculationStep, StepStats
from engine_host.protocol.methods import History
from engine_host.protocol.snapshot import (
    WINDOWS,
    Latency,
    Percentiles,
    PrefixCache,
    Queue,
    Throughput,
)
from engine_host.protocol.speculation import Speculation
from engine_host.telemetry.acceptance import Acceptance
from engine_host.telemetry.gauges import Gauges
from engine_host.telemetry.latency import LatencyWindows

SPAN_S = 300
"""Seconds kept: the longest window and the history strip of the overview."""
RATE_WINDOW_S = 10.0
"""Throughput and preemption rates: short enough to follow a change, long enough to average single steps."""
RATIO_WINDOW_S = 60.0
"""Acceptance and prefix hits: ratios of counts that come in bursts need more samples."""
MAX_POSITIONS = 32
"""Draft positions counted; vLLM's own dynamic schedules stay far below."""

_SHORTEST_S = 0.1
"""What a rate is taken over at least: the first step of an engine is no rate yet."""

SERIES: tuple[str, ...] = (
    "kv.usage",
    "queue.running",
    "queue.waiting",
    "throughput.generation_tokens_per_s",
    "throughput.prompt_tokens_per_s",
    "speculation.acceptance_rate",
)
"""Series that `history` serves, by snapshot key; one value a second."""

_COLUMNS = (
    "prompt_tokens",
    "generation_tokens",
    "preemptions",
    "finished",
    "prefix_queried_tokens",
    "prefix_hit_tokens",
    "drafts",
    "drafted",
    "accepted",
)
_AT = {name: index for index, name in enumerate(_COLUMNS)}
_DRAFTED_AT = len(_COLUMNS)
_ACCEPTED_AT = _DRAFTED_AT + MAX_POSITIONS
_WIDTH = _ACCEPTED_AT + MAX_POSITIONS


class TelemetryStore:
    """All step statistics of one host. Times are monotonic seconds from `clock`."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._started = clock()
        self._second = int(self._started)
        self._serving_since: float | None = None
        self._rows = np.zeros((SPAN_S, _WIDTH), dtype=np.int64)
        self._current = [0] * _WIDTH
        self._totals = [0] * _WIDTH
        self.gauges = Gauges(clock)
        self._history: deque[tuple[float | None, ...]] = deque(maxlen=SPAN_S)
        self._ttft = LatencyWindows(WINDOWS)
        self._itl = LatencyWindows(WINDOWS)
        self._e2e = LatencyWindows(WINDOWS)
        self._queue = LatencyWindows(WINDOWS)
        self._latencies = (self._ttft, self._itl, self._e2e, self._queue)
        for latency in self._latencies:
            latency.advance(self._second)

    # --- written by the engine -------------------------------------------------------------------------------------

    def record(self, step: StepStats) -> None:
        """Take one step. The hot path: integer additions and list appends only."""
        now = self._clock()
        if int(now) != self._second:
            self.advance()
        self.gauges.stepped(step, now)
        current = self._current
        current[0] += step.prompt_tokens
        current[1] += step.generation_tokens
        current[2] += step.preemptions
        current[3] += step.finished
        current[4] += step.prefix_queried_tokens
        current[5] += step.prefix_hit_tokens
        if step.speculation is not None:
            self._record_speculation(step.speculation)
        if step.ttft_s:
            self._ttft.record(step.ttft_s)
        if step.itl_s:
            self._itl.record(step.itl_s)
        if step.e2e_s:
            self._e2e.record(step.e2e_s)
        if step.queue_s:
            self._queue.record(step.queue_s)

    def _record_speculation(self, step: SpeculationStep) -> None:
        current = self._current
        current[6] += step.drafts
        current[7] += step.drafted
        current[8] += step.accepted
        for position, count in enumerate(step.drafted_per_position[:MAX_POSITIONS]):
            current[_DRAFTED_AT + position] += count
        for position, count in enumerate(step.accepted_per_position[:MAX_POSITIONS]):
            current[_ACCEPTED_AT + position] += count

    def engine_serves(self) -> None:
        """An engine takes requests from now on: windows begin here.

        What was counted in this second until now is moved into the one before, where it no longer counts as this
        engine's: the last steps of the former engine, and this one's own warm-up and probe.
        """
        self.advance()
        self._rows[(self._second - 1) % SPAN_S] += np.asarray(self._current)
        self._totals = [total + now for total, now in zip(self._totals, self._current, strict=True)]
        self._current = [0] * _WIDTH
        self._serving_since = self._clock()

    def engine_gone(self) -> None:
        """Forget the gauges. Counters and windows stay."""
        self._serving_since = None
        self.gauges.forget()

    # --- moved on by the clock -------------------------------------------------------------------------------------

    def advance(self) -> None:
        """Close past seconds. Called by `record` and by every reader; idle seconds become empty rows."""
        second = int(self._clock())
        if second == self._second:
            return
        self._rows[self._second % SPAN_S] = self._current
        self._totals = [total + now for total, now in zip(self._totals, self._current, strict=True)]
        self._current = [0] * _WIDTH
        for idle in range(self._second + 1, min(second, self._second + SPAN_S + 1)):
            self._rows[idle % SPAN_S] = 0
        self._rows[second % SPAN_S] = 0
        for latency in self._latencies:
            latency.advance(second)
        self._second = second

    def sample_history(self, backlog: Backlog | None) -> None:
        """Add one value to every series; the host calls it once a second."""
        queue, kv_usage = self.queue(backlog), max(self.gauges.kv_usage_by_engine(backlog), default=None)
        throughput = self.throughput()
        self._history.append(
            (
                kv_usage,
                queue.running,
                queue.waiting,
                throughput.generation_tokens_per_s,
                throughput.prompt_tokens_per_s,
                self.speculation(None, None).acceptance_rate,
            )
        )

    # --- read ------------------------------------------------------------------------------------------------------

    def queue(self, backlog: Backlog | None) -> Queue:
        """As the step statistics tell it; `backlog` is None while no engine is up."""
        self.advance()
        self.gauges.watch(backlog)
        if backlog is None:
            return Queue(window_s=RATE_WINDOW_S, preemptions_total=self._total("preemptions"))
        running, waiting, deferred = self.gauges.requests(backlog)
        reason = self.gauges.stalled_reason(running, waiting + deferred)
        # Waiting requests are the youngest of those without a first token; the older ones are being prefilled.
        waits = backlog.first_token_waits_s[::-1][: waiting + deferred]
        return Queue(
            running=running,
            waiting=waiting + deferred,
            waiting_by_reason={"capacity": waiting, "deferred": deferred},
            oldest_wait_s=waits[-1] if waits else None,
            preemptions_per_s=self._rate("preemptions"),
            preemptions_total=self._total("preemptions"),
            window_s=RATE_WINDOW_S,
            stalled=reason is not None,
            stalled_reason=reason,
        )

    def throughput(self) -> Throughput:
        self.advance()
        return Throughput(
            window_s=RATE_WINDOW_S,
            prompt_tokens_per_s=self._rate("prompt_tokens"),
            generation_tokens_per_s=self._rate("generation_tokens"),
            requests_per_s=self._rate("finished"),
            prompt_tokens_total=self._total("prompt_tokens"),
            generation_tokens_total=self._total("generation_tokens"),
            requests_total=self._total("finished"),
        )

    def speculation(self, method: str | None, k_max: int | None) -> Speculation:
        self.advance()
        shown = self.acceptance(RATIO_WINDOW_S).window(k_max or 0)
        spans = WINDOWS if method else {}
        return Speculation(
            window_s=RATIO_WINDOW_S,
            method=method,
            acceptance_rate=shown.acceptance_rate,
            mean_acceptance_length=shown.mean_acceptance_length,
            per_position=shown.per_position,
            k=k_max,
            k_max=k_max,
            drafted_per_s=shown.drafted_per_s if method else None,
            accepted_per_s=shown.accepted_per_s if method else None,
            windows={name: self.acceptance(span).window(k_max or 0) for name, span in spans.items()},
            drafts_total=self._total("drafts"),
            drafted_total=self._total("drafted"),
            accepted_total=self._total("accepted"),
        )

    def acceptance(self, window_s: float) -> Acceptance:
        """Drafts of the last `window_s`, at most `SPAN_S`."""
        self.advance()
        counts, span = self._window(window_s)
        drafts, drafted, accepted = (int(counts[_AT[name]]) for name in ("drafts", "drafted", "accepted"))
        reached, passed = counts[_DRAFTED_AT:_ACCEPTED_AT], counts[_ACCEPTED_AT:]
        return Acceptance(span, drafts, drafted, accepted, reached, passed)

    def prefix_cache(self, enabled: bool | None) -> PrefixCache:
        self.advance()
        counts, _ = self._window(RATIO_WINDOW_S)
        queried = int(counts[_AT["prefix_queried_tokens"]])
        hits = int(counts[_AT["prefix_hit_tokens"]])
        return PrefixCache(
            window_s=RATIO_WINDOW_S,
            enabled=enabled,
            hit_rate=hits / queried if queried else None,
            queried_tokens=queried,
            queried_tokens_total=self._total("prefix_queried_tokens"),
            hit_tokens_total=self._total("prefix_hit_tokens"),
        )

    def latency(self) -> Latency:
        self.advance()
        return Latency(ttft=self._ttft.read(), itl=self._itl.read(), e2e=self._e2e.read(), queue=self._queue.read())

    def ttft(self, window: str) -> Percentiles:
        """Of one window (`WINDOWS`): the others cost as much again."""
        self.advance()
        return self._ttft.read_one(window)

    def history(self, series: list[str], span_s: float) -> History:
        """Recent values of `series`, oldest first. Raises `ValueError` naming an unknown series."""
        for name in series:
            if name not in SERIES:
                raise ValueError(f"unknown series {name!r}; there are {', '.join(SERIES)}")
        rows = list(self._history)[-max(1, int(span_s)) :]
        return History(
            end_at=time.time(),
            step_s=1.0,
            series={name: [row[SERIES.index(name)] for row in rows] for name in series},
        )

    # --- inside ----------------------------------------------------------------------------------------------------

    def _total(self, column: str) -> int:
        return self._totals[_AT[column]] + self._current[_AT[column]]

    def _window(self, window_s: float) -> tuple[np.ndarray[tuple[int], np.dtype[np.int64]], float]:
        """Counts of the last `window_s` and the seconds that they cover: the running one in part, and none before the
        engine served. Without an engine the host's uptime bounds them."""
        began = self._started if self._serving_since is None else self._serving_since
        first = max(self._second - int(window_s) + 1, int(began))
        rows = [second % SPAN_S for second in range(first, self._second)]
        counts = self._rows[rows].sum(axis=0) + np.asarray(self._current)
        return counts, max(self._clock() - max(first, began), _SHORTEST_S)

    def _rate(self, column: str) -> float:
        counts, span = self._window(RATE_WINDOW_S)
        return float(counts[_AT[column]]) / span
