"""What a host tells of its throttle."""

from __future__ import annotations

from typing import Any

import msgspec

from engine_host.protocol.methods import ThrottleApplied
from engine_host.protocol.snapshot import Percentiles, State
from engine_host.protocol.throttling import (
    AutoGauge,
    AutoMode,
    AutoState,
    ClassCount,
    GateCounts,
    Limit,
    LimitName,
    LimitValue,
    ThrottleSheet,
)

NOW = 1_796_047_502.0
OWN: dict[LimitName, LimitValue] = {
    LimitName.MAX_INFLIGHT: 64,
    LimitName.PROMPT_TOKEN_RATE: 2000.0,
    LimitName.HOLD_QUEUE: 256,
    LimitName.HOLD_DEADLINE_S: 30.0,
    LimitName.PAUSED: False,
    LimitName.DRAINING: False,
}


def limits(**changed: Limit) -> dict[str, Limit]:
    plain = {str(name): Limit(value=OWN.get(name), profile=OWN.get(name)) for name in LimitName}
    return {**plain, **changed}


def sheet(**changes: Any) -> ThrottleSheet:
    capped = Limit(value=16, profile=64, who="maria", reason="KV pressure", since=NOW - 100, until=NOW + 500)
    whole = ThrottleSheet(
        limits=limits(
            max_inflight=capped, hold_deadline_s=Limit(value=20.0, profile=30.0, who="ops", since=NOW - 1000)
        ),
        auto=AutoState(
            mode=AutoMode.ON,
            who="ops",
            since=NOW - 50,
            cap=32,
            text="KV 94 % for 3 s: cap 64 → 32",
            acted_at=NOW - 4,
            overruled_by="maria",
            gauges=[
                AutoGauge(name="kv", value=0.94, enter=0.9, leave=0.8, over_for_s=3.2),
                AutoGauge(name="ttft_p95", value=None, enter=None, leave=None),
            ],
        ),
        counts=GateCounts(
            inflight=12,
            held=3,
            oldest_held_s=1.2,
            admitted_total=12_345,
            held_total=400,
            gone_total=2,
            refused_total=17,
            refused_by_reason={"deadline": 7, "queue_full": 10},
            truncated_total=1,
            hold_wait={"5m": Percentiles(n=40, p50_s=0.21, p95_s=1.2, p99_s=2.01)},
            classes=[ClassCount(name="low", refused_total=17), ClassCount(name="high", held=3, admitted_total=12_345)],
        ),
        class_names=["low", "high"],
        at=NOW,
    )
    return msgspec.structs.replace(whole, **changes)


def applied(state: State = State.SERVING, **changed: Limit) -> ThrottleApplied:
    return ThrottleApplied(
        state=state,
        state_version=7,
        took_s=0.001,
        text="max_inflight 64 → 16 for 10 m: KV pressure",
        throttle=ThrottleSheet(limits=limits(**changed)),
    )
