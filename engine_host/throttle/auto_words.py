"""What the controller does, in words: "KV 94 % for 3 s: cap 64 → 32"."""

from __future__ import annotations

from collections.abc import Sequence

from engine_host.throttle.gauges import Gauges
from engine_host.throttle.watch import Watch


def figure(watch: Watch) -> str:
    """`KV 94 %`, `12 waiting`, `1.3 preemptions/s`, `TTFT p95 4.2 s`."""
    value = watch.value
    if value is None:
        return f"{watch.name} unknown"
    if watch.name == "kv":
        return f"KV {value * 100:.0f} %"
    if watch.name == "waiting":
        return f"{value:.0f} waiting"
    if watch.name == "preemptions":
        return f"{value:.1f} preemptions/s"
    return f"TTFT p95 {value:.3g} s"


def reason_of_cut(over: Sequence[tuple[Watch, float]]) -> str:
    figures = " and ".join(figure(watch) for watch, _ in over)
    return f"{figures} for {max(seconds for _, seconds in over):.0f} s"


def cap_in_words(cap: int | None) -> str:
    return "none" if cap is None else str(cap)


def move(why: str, before: int | None, after: int | None, gauges: Gauges, *, would: bool) -> str:
    first = f" ({gauges.inflight} in flight)" if before is None else ""
    verb = "would move the cap" if would else "cap"
    return f"{why}: {verb} {cap_in_words(before)} → {cap_in_words(after)}{first}"


def gone(why: str, cap: int, *, was_thought: bool) -> str:
    """The controller's cap is given up. `was_thought`: it was only what would have been done."""
    return f"{why}: the cap of {cap} that would have been is given up" if was_thought else f"{why}: cap {cap} → none"
