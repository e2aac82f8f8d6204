"""The throttle: what operators set at the gate, what the controller chose, over what the profile says.

Every change is put in force at the gate at once, whole. A setting may end by itself: then the former one returns, which
may end as well, and that is told. Settings belong to the host and not to its engine: they hold while none runs, across
crashes, restarts and switches, and end with the host. With another profile its own limits lie under them, and what an
operator has set is told again, so that it is neither lost nor forgotten.

Everything here runs on the event loop.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import Callable
from typing import Protocol

from engine_host.engine.host_state import EventSink
from engine_host.gateway.api_keys import ApiKeys
from engine_host.profiles import Profile
from engine_host.profiles.throttle_table import Auto
from engine_host.profiles.throttle_table import Throttle as Table
from engine_host.protocol import snapshot
from engine_host.protocol.methods import PauseParams, ResumeParams, ThrottleAuto, ThrottleClear, ThrottleSet
from engine_host.protocol.snapshot import State
from engine_host.protocol.throttling import (
    AUTO,
    AutoGauge,
    AutoMode,
    AutoState,
    GateCounts,
    LimitName,
    ThrottleSheet,
)
from engine_host.throttle import limit_moves, orders
from engine_host.throttle import limit_words as words
from engine_host.throttle.layers import CLOSED, AutoCap, Layers, former
from engine_host.throttle.limits import Limits

logger = logging.getLogger(__name__)

RETRY_S = 5.0
"""After a setting that ended could not be taken back."""
_SOONEST_S = 0.001
"""An event loop's clock may be a little behind the one that settings are counted by."""


class LimitSink(Protocol):
    """The gate, as far as it is told what to do."""

    def apply(self, limits: Limits) -> None:
        """In force when this returns."""

    def set_classes(self, table: Table) -> None: ...

    def set_api_keys(self, keys: ApiKeys) -> None: ...

    def counts(self) -> GateCounts: ...


class Throttle:
    """See the module docstring. `clock` counts what is left of a setting, `wall` is told; `on_closed` is told whether
    the gate is paused or draining."""

    def __init__(
        self,
        gate: LimitSink,
        on_event: EventSink,
        on_closed: Callable[[State | None], None] = lambda closed: None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._gate = gate
        self._on_event = on_event
        self._on_closed = on_closed
        self._clock = clock
        self._wall = wall
        self._profile: Profile | None = None
        self._layers = Layers.of(Table())
        self._applied: Limits | None = None
        self._wake: asyncio.TimerHandle | None = None
        self.gauges: Callable[[], list[AutoGauge]] = list
        """What the controller watches, for the sheet; set by whoever runs it."""
        self.version = 0
        """Counts the changes, for whoever keeps what was read."""

    # --- read ------------------------------------------------------------------------------------------------------

    def sheet(self) -> ThrottleSheet:
        now, layers = self._clock(), self._layers
        return ThrottleSheet(
            limits=layers.sheet(now),
            auto=self._auto_state(now),
            counts=self._gate.counts(),
            class_names=list(layers.table.classes),
            overlong=layers.table.overlong,
            at=self._wall(),
        )

    def _auto_state(self, now: float) -> AutoState:
        layers, mode = self._layers, self._layers.mode.in_force(now)
        return AutoState(
            mode=mode.value,
            who=mode.who,
            since=mode.since,
            until=mode.until,
            then=former(layers.mode.next(now)),
            cap=layers.auto.cap,
            text=layers.auto.text,
            acted_at=layers.auto.at,
            overruled_by=self.auto_overruled_by,
            gauges=self.gauges(),
        )

    def snapshot(self) -> snapshot.Throttle:
        """The same in short."""
        now, layers, counts = self._clock(), self._layers, self._gate.counts()
        in_force = {name: layers.in_force(name, now) for name in LimitName}
        cap = in_force[LimitName.MAX_INFLIGHT].value
        set_by = {str(n): one.who for n, one in in_force.items() if one.who is not None and one.value is not False}
        return snapshot.Throttle(
            auto=layers.mode.in_force(now).value,
            auto_text=layers.auto.text,
            auto_at=layers.auto.at,
            max_inflight=cap if isinstance(cap, int) else None,
            limited_by=list(set_by),
            set_by=set_by,
            paused=bool(in_force[LimitName.PAUSED].value),
            draining=bool(in_force[LimitName.DRAINING].value),
            inflight=counts.inflight,
            admitted_total=counts.admitted_total,
            held_total=counts.held_total,
            refused_total=counts.refused_total,
            refused_by_reason=dict(counts.refused_by_reason),
        )

    # --- what operators do -----------------------------------------------------------------------------------------

    def set(self, order: ThrottleSet, who: str) -> str:
        """In force when this returns, with a sentence of what has changed. Raises `OperatorError`: nothing has. So do
        the others."""
        return self._do(orders.set_limits(*self._asked(who), order))

    def clear(self, order: ThrottleClear, who: str) -> str:
        return self._do(orders.clear(*self._asked(who), order))

    def auto(self, order: ThrottleAuto, who: str) -> str:
        return self._do(orders.set_auto(*self._asked(who), order))

    def pause(self, order: PauseParams, who: str) -> str:
        key = order.idempotency_key
        wanted = ThrottleSet(
            limits={LimitName.PAUSED: True},
            for_s=order.for_s,
            expected=order.expected,
            reason=order.reason,
            idempotency_key=key,
        )
        return self.set(wanted, who)

    def resume(self, order: ResumeParams, who: str) -> str:
        return self._do(orders.resume(*self._asked(who), order))

    def _asked(self, who: str) -> tuple[Layers, orders.Asked]:
        """What is in force now, and who asks for a change of it."""
        asked = orders.Asked(who, self._clock(), self._wall())
        if (end := self._layers.next_end()) is not None and end <= asked.now:
            self._end(asked.now)  # before its own timer came to it, or it would not be told
        return self._layers, asked

    def _do(self, done: orders.Done) -> str:
        layers, text = done
        if layers is not self._layers:
            self._layers = layers
            self._put_in_force()
        return text

    # --- what the controller does ----------------------------------------------------------------------------------

    @property
    def auto_settings(self) -> Auto:
        """What the profile says; the mode in force is `auto_mode`."""
        return self._layers.table.auto

    @property
    def auto_mode(self) -> AutoMode:
        return self._layers.mode.in_force(self._clock()).value

    @property
    def auto_mode_moves(self) -> int:
        """How often it became another."""
        return self._layers.mode_moves

    @property
    def auto_overruled_by(self) -> str | None:
        """Who set the cap, or that there is none, that wins over the controller's."""
        return self._layers.settings[LimitName.MAX_INFLIGHT].in_force(self._clock()).who

    @property
    def bound(self) -> int | None:
        """The profile's own cap, which the controller's never exceeds."""
        return self._layers.table.max_inflight

    @property
    def is_closed(self) -> bool:
        """Paused or draining: nothing is let in."""
        now = self._clock()
        return any(self._layers.in_force(name, now).value for name in CLOSED)

    def propose(self, cap: int | None, text: str) -> None:
        """The controller's cap: in force when the mode is `on`, and in any other kept for the sheet. `text` says why,
        and is told as an event; empty: there is nothing to tell."""
        mode = self.auto_mode
        if mode is AutoMode.OFF:
            cap = None
        elif text:
            data = {"mode": str(mode), "cap": cap}
            self._on_event("throttle.auto", text, who=AUTO, data=data)
        at = self._wall() if text else self._layers.auto.at
        self._layers = dataclasses.replace(self._layers, auto=AutoCap(cap, text or self._layers.auto.text, at))
        self._put_in_force()

    # --- profiles that come and go ---------------------------------------------------------------------------------

    def attach(self, profile: Profile) -> list[str]:
        """`profile` serves, or is to serve, from now on; maybe in another engine. Returns what became of the limits, a
        sentence each, as events tell it too."""
        former, before, now = self._profile, self._layers, self._clock()
        self._profile = profile
        self._layers = limit_moves.moved(before, profile.throttle, now)
        self._gate.set_classes(profile.throttle)
        self._gate.set_api_keys(ApiKeys.of(profile.server))
        self._put_in_force()
        if former is None:
            return []
        is_another = former.name != profile.name
        notes = limit_moves.notes(before, self._layers, profile.name, now, is_another=is_another)
        for kind, text, severity in notes:
            self._on_event(kind, text, severity=severity)
        return [text for _, text, _ in notes]

    def under(self, profile: Profile) -> tuple[list[str], list[str]]:
        """What of what operators have set would stay if `profile` served, and what would end, a phrase each."""
        now = self._clock()
        after = limit_moves.moved(self._layers, profile.throttle, now)
        return limit_moves.standing(after, now), limit_moves.ending(self._layers, after, profile.name, now)

    # --- putting it in force ---------------------------------------------------------------------------------------

    def _put_in_force(self) -> None:
        now = self._clock()
        limits = self._layers.limits(now)
        self.version += 1
        if limits != self._applied:
            self._gate.apply(limits)
            self._applied = limits
            closed = State.DRAINING if limits.draining else State.PAUSED if limits.paused else None
            self._on_closed(closed)
        self._wake_at(self._layers.next_end(), now)

    def _wake_at(self, end: float | None, now: float) -> None:
        self.close()
        if end is not None:
            self._wake = asyncio.get_running_loop().call_later(max(_SOONEST_S, end - now), self._look)

    def close(self) -> None:
        """Nothing ends by itself any more."""
        if self._wake is not None:
            self._wake.cancel()
            self._wake = None

    def _look(self) -> None:
        """Take back what has ended."""
        try:
            self._end(self._clock())
        except Exception:
            logger.exception("settings of the throttle that end stay as they are")
            self._wake = asyncio.get_running_loop().call_later(RETRY_S, self._look)

    def _end(self, now: float) -> None:
        layers = self._layers
        ended = {name: one for name, settings in layers.settings.items() if (one := settings.over(now)) is not None}
        mode = layers.mode.over(now)
        if mode is not None and mode.value is not layers.mode.in_force(now).value:
            self._layers = layers.in_another_mode()
        self._put_in_force()
        layers.mode.end(now)  # not before: a gate that has failed is told again
        for settings in layers.settings.values():
            settings.end(now)
        self._wake_at(self._layers.next_end(), now)
        together: dict[tuple[str | None, float | None, float | None], list[LimitName]] = {}
        for name, was in ended.items():
            together.setdefault((was.who, was.since, was.until), []).append(name)
        for names in together.values():
            values = self._layers.values(names, now)
            moves = [words.move(name, ended[name], value) for name, value in values.items()]
            text = words.over(moves, ended[names[0]].who, ended[names[0]].spoken_for_s)
            self._on_event("throttle.returned", text, data={"limits": {str(n): v for n, v in values.items()}})
        if mode is not None:
            is_ = self._layers.mode.in_force(now).value
            text = words.over([f"auto {mode.value} → {is_}"], mode.who, mode.spoken_for_s)
            self._on_event("throttle.returned", text, data={"auto": str(is_)})
