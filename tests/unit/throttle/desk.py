"""A throttle over a gate that writes down what it is told, with clocks that a test turns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from engine_host.gateway.api_keys import ApiKeys
from engine_host.profiles import Profile, build_profile
from engine_host.profiles.throttle_table import Throttle as Table
from engine_host.protocol.methods import PauseParams, ResumeParams, ThrottleAuto, ThrottleClear, ThrottleSet
from engine_host.protocol.snapshot import State
from engine_host.protocol.throttling import AutoMode, GateCounts, LimitValue
from engine_host.throttle.limits import Limits
from engine_host.throttle.throttle import Throttle

WALL = 1_700_000_000.0


def profile(name: str = "a", **throttle: Any) -> Profile:
    return build_profile({"schema": 1, "engine": {"model": "m"}, "throttle": throttle}, Path(f"{name}.toml"))


class WrittenGate:
    """See the module docstring."""

    def __init__(self) -> None:
        self.applied: list[Limits] = []
        self.tables: list[Table] = []
        self.keys = ApiKeys()
        self.told = GateCounts()
        self.failure: Exception | None = None

    def apply(self, limits: Limits) -> None:
        if self.failure is not None:
            raise self.failure
        self.applied.append(limits)

    def set_classes(self, table: Table) -> None:
        self.tables.append(table)

    def set_api_keys(self, keys: ApiKeys) -> None:
        self.keys = keys

    def counts(self) -> GateCounts:
        return self.told

    @property
    def limits(self) -> Limits:
        return self.applied[-1]


class Desk:
    def __init__(self, at: Profile | None = None) -> None:
        self.now = 100.0
        self.events: list[tuple[str, str]] = []
        self.closed: list[State | None] = []
        self.gate = WrittenGate()
        self.throttle = Throttle(
            self.gate, self._event, self.closed.append, clock=lambda: self.now, wall=lambda: WALL + self.now
        )
        self.throttle.attach(at or profile())

    def _event(self, kind: str, text: str, **_: Any) -> None:
        self.events.append((kind, text))

    def set(self, who: str = "ops", for_s: float | None = None, reason: str = "", **limits: LimitValue) -> str:
        order = ThrottleSet(limits=limits, for_s=for_s, reason=reason, idempotency_key="k")
        return self.throttle.set(order, who)

    def expecting(self, expected: dict[str, LimitValue], **limits: LimitValue) -> str:
        return self.throttle.set(ThrottleSet(limits=limits, expected=expected, idempotency_key="k"), "ops")

    def clear(self, *names: str, reason: str = "", expected: dict[str, LimitValue] | None = None) -> str:
        order = ThrottleClear(names=list(names), reason=reason, expected=expected, idempotency_key="k")
        return self.throttle.clear(order, "ops")

    def auto(
        self,
        mode: str,
        for_s: float | None = None,
        reason: str = "",
        who: str = "ops",
        expected: AutoMode | None = None,
    ) -> str:
        order = ThrottleAuto(mode=AutoMode(mode), for_s=for_s, reason=reason, expected=expected, idempotency_key="k")
        return self.throttle.auto(order, who)

    def pause(
        self,
        for_s: float | None = None,
        who: str = "ops",
        reason: str = "",
        expected: dict[str, LimitValue] | None = None,
    ) -> str:
        order = PauseParams(for_s=for_s, reason=reason, expected=expected, idempotency_key="k")
        return self.throttle.pause(order, who)

    def resume(self, reason: str = "", expected: dict[str, LimitValue] | None = None) -> str:
        return self.throttle.resume(ResumeParams(reason=reason, expected=expected, idempotency_key="k"), "ops")

    def after(self, seconds: float) -> None:
        """So much later, and whatever has ended is taken back."""
        self.now += seconds
        self.throttle._look()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not condition():
                await asyncio.sleep(0.005)
