"""The parts `kv` and `queue` of a snapshot: the scheduler's own word where it can be looked into, else what its step
statistics and the front end say."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from engine_host.engine.port import Backlog, Engine
from engine_host.live.sample import RequestState
from engine_host.protocol.snapshot import Blocks, Kv, Queue
from engine_host.telemetry.fill_rate import WINDOW_S, FillRate
from engine_host.telemetry.live_figures import LiveFigures, live_figures
from engine_host.telemetry.request_list import id_of
from engine_host.telemetry.request_trouble import beyond_capacity, core_capacity
from engine_host.telemetry.store import TelemetryStore

_FRESH_S = 2.0
"""How far a sample may lie behind the last step: a look at a large engine comes a few times a second."""


class KvAndQueue:
    """Used on the event loop alone."""

    def __init__(self, store: TelemetryStore, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        self._filling = FillRate()
        self._engine: Engine | None = None

    def keep_up(self, engine: Engine | None) -> None:
        """Once a second, also while nobody looks: the forecast rests on what was seen then."""
        if engine is not self._engine:
            self._engine = engine
            self._filling.clear()
        if engine is None:
            return
        backlog = engine.backlog()
        live = self._live(engine, backlog, time.time())
        usages = live.usage_by_engine if live is not None else self._store.gauges.kv_usage_by_engine(backlog)
        self._filling.add(self._clock(), max(usages, default=None))

    def read(self, engine: Engine | None, now: float) -> tuple[Kv, Queue]:
        """`now` is Unix time."""
        if engine is None:
            return Kv(), self._store.queue(None)
        backlog = engine.backlog()
        live = self._live(engine, backlog, now)
        return self._kv(engine, backlog, live), self._queue(engine, backlog, live)

    def _live(self, engine: Engine, backlog: Backlog, now: float) -> LiveFigures | None:
        """None where the scheduler cannot be looked into, and when its last word is older than its last step."""
        if isinstance(engine.live, str):
            return None
        samples = engine.live.samples()
        if not samples:
            return None
        stepped_s = self._store.gauges.last_step_age_s
        # Of several cores one may rest, and publishes nothing meanwhile.
        if stepped_s is not None and now - max(sample.at for sample in samples) - stepped_s > _FRESH_S:
            return None
        return live_figures(samples, engine.facts, now, is_empty=self._store.gauges.is_idle(backlog))

    def _kv(self, engine: Engine, backlog: Backlog, live: LiveFigures | None) -> Kv:
        facts = engine.facts
        if live is not None:
            usages, blocks = live.usage_by_engine, live.blocks
        else:
            usages, total = self._store.gauges.kv_usage_by_engine(backlog), facts.total_blocks
            # The cores have equal shares of the blocks.
            active = round(sum(usages) / len(usages) * total) if usages and total is not None else None
            blocks = Blocks(total=total, active=active)
        usage = max(usages, default=None)
        full_in_s = self._filling.full_in_s(self._clock(), usage) if engine is self._engine else None
        longest = facts.max_model_len_tokens
        return Kv(
            usage=usage,
            usage_by_engine=usages,
            blocks=blocks,
            block_size=facts.block_size,
            capacity_tokens=facts.capacity_tokens,
            internal_waste=live.internal_waste if live is not None else None,
            longest_requests=facts.capacity_tokens / longest if facts.capacity_tokens and longest else None,
            full_in_s=full_in_s,
            full_rate_window_s=WINDOW_S if full_in_s is not None else None,
        )

    def _queue(self, engine: Engine, backlog: Backlog, live: LiveFigures | None) -> Queue:
        queue = self._store.queue(backlog)
        if live is not None:
            queue = msgspec.structs.replace(
                queue,
                running=live.running,
                waiting=live.waiting,
                waiting_by_reason=live.waiting_by_reason,
                oldest_wait_s=live.oldest_wait_s,
            )
        reason, text = queue.stalled_reason, None
        if engine.is_dead:
            reason = None  # that is another trouble, with another remedy, and told by whoever finds the death
        elif queue.waiting and not queue.running and reason != "hung" and (blamed := _never_scheduled(engine)):
            reason, text = "stuck", blamed
        elif reason == "stuck":
            text = "requests wait and none runs"
        elif reason == "hung":
            age_s = self._store.gauges.last_step_age_s or 0.0
            text = f"requests run and no token comes; the last step was {age_s:.0f} s ago"
        return msgspec.structs.replace(queue, stalled=reason is not None, stalled_reason=reason, stalled_text=text)


def _never_scheduled(engine: Engine) -> str | None:
    """The first waiting request that no engine core can hold, and why (field case 6)."""
    capacity = core_capacity(engine.facts)
    if capacity is None:
        return None
    samples = engine.live.samples() if not isinstance(engine.live, str) else ()
    for sample in samples:
        waiting = sample.requests[sample.requests["state"] != RequestState.RUNNING]
        tokens = waiting["prompt_tokens"].astype(int) + waiting["generated_tokens"]
        for at in (tokens > capacity).nonzero()[0][:1]:
            why = beyond_capacity(int(waiting["prompt_tokens"][at]), int(waiting["generated_tokens"][at]), capacity)
            return f"the request {id_of(waiting[at])} can never be scheduled: {why}"
    if samples:
        return None
    for request in engine.requests():
        if (why := beyond_capacity(request.prompt_tokens, request.generated_tokens, capacity)) is not None:
            return f"the request {request.id[:60]} can never be scheduled: {why}"
    return None
