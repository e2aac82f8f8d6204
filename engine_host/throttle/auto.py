"""The automatic controller: additive increase, multiplicative decrease of the cap on requests in flight.

    cap     event                                                         becomes
    none    a figure above its enter threshold for `dwell_s`              a share of what the engine runs now
    a cap   the same, since fewer than the cap are in flight              `decrease` of it, at least `min_inflight`
    a cap   all figures at or below leave for `leave_dwell_s`, and the    a little more
            cap keeps requests out
    a cap   the same, and it has kept nobody out for as long              none
    a cap   the figures are no longer the engine's (stale, field case 5)  none

Pure: `step` takes the figures with their time and returns what to do. Four rules keep it from sawing. A cut is followed
by another only once it has taken hold: requests in flight have to end first, and figures that look back have to look
at the time since. The cap at which the engine last choked is remembered: below it the cap climbs fast; it goes there
again only after a pause that grows each time the same is found; and beyond what is known it rises once a turnover, when
as many requests have ended as may be in flight. And it turns upwards only while `TURNS` leaves room for the turn that
may follow: whatever the load does, a working engine sees no more changes of direction.

Any one figure is enough for a cut: a load of long prompts queues with an almost empty KV cache (field case 23).
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from engine_host.profiles.throttle_table import Auto
from engine_host.protocol.throttling import AutoGauge
from engine_host.throttle import auto_words
from engine_host.throttle.gauges import Gauges
from engine_host.throttle.watch import Watches

IDLE_AFTER_S = 1.0
"""Nothing unfinished and no step for so long: the last figures are history. As the telemetry store has it."""
FROZEN_AFTER_S = 15.0
"""No figure moves and no token flows for so long, whatever is unfinished: they are not believed. The slowest honest
step, a full prefill batch on CPU, takes seconds."""
FRESH_S = 2.0
"""Figures older than this start no cut and no raise."""
TURNS = 6
TURNS_WITHIN_S = 60.0
"""Changes of direction: at most so many within so long."""
PROBE_AFTER_S = 30.0
LONGEST_PROBE_AFTER_S = 60.0
"""From a choke to the first attempt at the same cap; doubled each time it chokes there again. Four minutes at most left
a real engine at 70 % of its cache for half of a run."""
REMEMBER_S = 600.0
"""Loads change: a choke that lies so far back says nothing of this one."""


@dataclass(frozen=True, slots=True)
class Action:
    cap: int | None
    """From now on; None: no cap of the controller's."""
    text: str


@dataclass(slots=True)
class Choke:
    """Where the engine last was too full."""

    cap: int
    at: float
    probe_after_s: float = PROBE_AFTER_S

    def again(self, cap: int, at: float) -> Choke:
        """The same ground again: try it less often."""
        if abs(cap - self.cap) > max(1, self.cap // 8):
            return Choke(cap, at)
        return Choke(cap, at, min(2 * self.probe_after_s, LONGEST_PROBE_AFTER_S))


class AutoController:
    """`settings.mode` is `on` or `observe`: whoever runs it does not step it while it is off."""

    def __init__(self, settings: Auto) -> None:
        self.settings = settings
        self._watches = Watches(settings)
        self._engine: int | None = None
        self._begin_afresh()

    def _begin_afresh(self) -> None:
        self.cap: int | None = None
        """That it has put in force, or would have."""
        self.choked: Choke | None = None
        self.full: int | None = None
        """What the engine worked on when the cap in force first bit: it is a share of that."""
        self._set_at = -math.inf
        self._finished_at_set = 0
        self._settled_at: float | None = None
        """Since when no more than the cap are in flight."""
        self._bit_at = -math.inf
        """When it last kept a request out."""
        self._way = 0
        """Of the last move: up or down."""
        self._turned_at: deque[float] = deque(maxlen=TURNS)
        self._signature: object = None
        self._moved_at = -math.inf
        self._watches.forget()

    @property
    def is_observing(self) -> bool:
        return self.settings.mode == "observe"

    def gauges(self, at: float) -> list[AutoGauge]:
        return [watch.as_gauge(at) for watch in self._watches.all]

    def retune(self, settings: Auto) -> None:
        """Other settings: what is in force stays until the figures say otherwise."""
        if settings.mode != self.settings.mode:
            self._begin_afresh()
        self.settings = settings
        self._watches = Watches(settings)

    def watch(self, now: Gauges) -> None:
        """Take the figures in and do nothing."""
        self._watches.see(now)

    def withdraw(self) -> None:
        """Somebody else sets the cap, or nobody shall: begin afresh."""
        self._begin_afresh()

    # --- one step --------------------------------------------------------------------------------------------------

    def step(self, now: Gauges) -> Action | None:
        if now.engine != self._engine:
            action = None if self.cap is None else self._let_go(now, "another engine serves")
            self._begin_afresh()
            self._engine = now.engine
            self._look(now)
            return action
        self._look(now)
        if (why := self._stale(now)) is not None:
            self._watches.forget()
            return None if self.cap is None or now.is_paused else self._let_go(now, why)
        if now.is_paused:  # figures fall because nothing is let through, which is no reason for anything
            self._watches.forget()
            self._bit_at = now.at
            return None
        if now.at - self._moved_at > FRESH_S:
            return None
        return self._cut(now) or self._release(now) or self._raise(now)

    def _look(self, now: Gauges) -> None:
        signature = (now.kv, now.running, now.waiting, now.tokens_total)
        if signature != self._signature:
            self._signature = signature
            self._moved_at = now.at
        self._watches.see(now)
        if self.cap is None:
            return
        if self._settled_at is None and now.inflight <= self.cap:
            self._settled_at = now.at
        if self._bites(now):
            self._bit_at = now.at

    def _bites(self, now: Gauges) -> bool:
        """It keeps requests out, or would the next. A request of several choices waits while less than the cap is in
        flight; but with less than half of it, what holds requests is another limit."""
        assert self.cap is not None
        return now.inflight >= self.cap or (now.held > 0 and 2 * now.inflight >= self.cap)

    def _stale(self, now: Gauges) -> str | None:
        """Why the figures are no longer those of a working engine; None while they are."""
        if now.unfinished == 0 and now.silent_s > IDLE_AFTER_S:
            return "no request is left in the engine"
        if now.at - self._moved_at > FROZEN_AFTER_S:
            return f"the figures have stood still for {now.at - self._moved_at:.0f} s and no token came"
        if not self._watches.are_known and now.silent_s > IDLE_AFTER_S:
            return "the engine tells no figures"
        return None

    # --- down ------------------------------------------------------------------------------------------------------

    def _cut(self, now: Gauges) -> Action | None:
        if self.cap is not None and (self._settled_at is None or self.is_observing):
            return None
        since = -math.inf if self._settled_at is None else self._settled_at
        over = self._watches.over(now.at, since, self.settings.dwell_s)
        if not over:
            return None
        let_in = min(limit for limit in (now.inflight, self.cap, now.bound) if limit is not None)
        waiting = self._watches.waiting
        if now.running is not None and all(watch is waiting or watch.is_calm for watch in self._watches.all):
            # What runs is served well; only the queue behind it is too long.
            choked, cap = now.running + int(waiting.enter or 0), now.running + int(waiting.leave or 0)
        else:
            # What queues inside the engine is no use to anybody, and would be a queue again under a cap that counts it.
            choked = min(let_in, now.running) if now.waiting and now.running is not None else let_in
            cap = min(int(choked * self.settings.decrease), choked - 1)
        cap = max(cap, self.settings.min_inflight)
        if cap >= let_in:
            return None
        if self.cap is None:
            self.full = max(choked, cap)
        self.choked = Choke(choked, now.at) if self.choked is None else self.choked.again(choked, now.at)
        return self._move(now, cap, auto_words.reason_of_cut(over))

    # --- up --------------------------------------------------------------------------------------------------------

    def _release(self, now: Gauges) -> Action | None:
        dwell_s = self.settings.leave_dwell_s
        if self.cap is None or self._watches.calm_for(now.at) < dwell_s:
            return None
        if now.bound is not None and self.cap >= now.bound:
            return self._let_go(now, f"the profile's own cap of {now.bound} is enough")
        if self.is_observing:
            return self._let_go(now, f"all figures below their thresholds for {dwell_s:.0f} s")
        if now.at - self._bit_at < dwell_s or not self._may_turn_up(now.at):
            return None
        return self._let_go(now, f"{now.inflight} of {self.cap} in flight for {dwell_s:.0f} s")

    def _raise(self, now: Gauges) -> Action | None:
        settings = self.settings
        if self.cap is None or self._settled_at is None or self.is_observing:
            return None
        if self._watches.calm_for(now.at) < settings.leave_dwell_s or now.at - self._set_at < settings.increase_every_s:
            return None
        if not self._bites(now):
            return None
        cap = self._next_cap(now)
        if cap <= self.cap or not self._may_turn_up(now.at):
            return None
        why = f"all figures below their thresholds for {settings.leave_dwell_s:.0f} s, {now.held} held"
        return self._move(now, cap, why)

    def _next_cap(self, now: Gauges) -> int:
        assert self.cap is not None
        choked, cap, increase = self.choked, self.cap, self.settings.increase
        if choked is not None and now.at - choked.at > REMEMBER_S:
            choked = self.choked = None
        known = choked.cap - 1 if choked is not None else 0
        if cap < known:
            return min(known, cap + max(increase, (known - cap) // 2))
        if choked is not None and cap == known and now.at - choked.at < choked.probe_after_s:
            return cap
        if now.finished_total - self._finished_at_set < cap:
            return cap
        return cap + increase

    def _may_turn_up(self, at: float) -> bool:
        """A turn down cannot be put off, so one up has to leave room for it."""
        turned = sum(at - turn < TURNS_WITHIN_S for turn in self._turned_at)
        return self._way > 0 or turned <= TURNS - 2

    # --- what follows ----------------------------------------------------------------------------------------------

    def _move(self, now: Gauges, cap: int, why: str) -> Action:
        text = auto_words.move(why, self.cap, cap, now, would=self.is_observing)
        self._turn(1 if self.cap is not None and cap > self.cap else -1, now.at)
        self.cap = cap
        self._set_at = now.at
        self._finished_at_set = now.finished_total
        self._settled_at = now.at if now.inflight <= cap else None
        self._bit_at = max(self._bit_at, now.at)
        return Action(cap, text)

    def _let_go(self, now: Gauges, why: str) -> Action:
        text = auto_words.move(why, self.cap, None, now, would=self.is_observing)
        self._turn(1, now.at)
        self.cap = self.full = self._settled_at = None
        self._set_at = now.at
        return Action(None, text)

    def _turn(self, way: int, at: float) -> None:
        if way != self._way:
            self._way = way
            self._turned_at.append(at)
