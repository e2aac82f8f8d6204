"""What a dangerous action does, said with the numbers of this moment, before anyone agrees to it.

Used word for word by the command line and the TUI's dialog.
"""

from __future__ import annotations

from console import format as fmt
from engine_host.protocol.methods import RequestRow
from engine_host.protocol.profiles import Tier
from engine_host.protocol.snapshot import Snapshot
from engine_host.protocol.switching import SwitchForecast, SwitchProgress

METHOD_STOP = "host.stop"
METHOD_RESTART = "engine.restart"
METHOD_SWITCH = "switch"
METHOD_CANCEL = "switch.cancel"
METHOD_ABORT = "requests.abort"
METHOD_DIALS = "dials.set"
METHOD_LIMITS = "throttle.set"

NAME_CELLS = 32
"""Of a name; the protocol allows 200 characters."""

HOST_DRAIN_S = 60.0
"""Assumed for the host's own drain setting when none is given."""

TEARDOWN_S = 60.0
"""Ending an engine takes 2-5 s when it ends by itself; by force, with a device to free, up to this."""

FIRST_START_S = 600.0
"""For a start that was never timed: the largest models load for minutes."""

FORECAST_DEADLINE_S = 330.0
"""More than a host gives the processes that it asks (`engine_host.preflight`): its own word is better than none."""

CANCEL_DEADLINE_S = TEARDOWN_S
"""Cancelling is answered once the engine that was being started is gone."""

DIAL_DEADLINE_S = 75.0
"""Applied at the next step; a long prefill holds that back for seconds. The host gives up after 30 s, and may have
another operator's change to wait for first."""

ABORT_DEADLINE_S = 10.0
"""The host drops the request at once; the engine frees its blocks at its next step."""


def consequence(method: str, snapshot: Snapshot | None, drain_s: float | None = None) -> str:
    if snapshot is None:
        return "The host has sent no values yet, so what this would interrupt is unknown."
    patience = "the host's drain time" if drain_s is None else fmt.duration(drain_s)
    affected = (
        f"Affected: {_requests(snapshot)} requests. They get {patience} to finish; what still runs then is cut off."
    )
    if method == METHOD_STOP:
        api = fmt.clean(snapshot.host.http)
        return f"{affected} The engine and the API on {api} stay down until somebody starts them again."
    if method == METHOD_RESTART:
        took = snapshot.engine.start_took_s or snapshot.engine.start_expected_s
        downtime = "unknown, as no start was timed yet" if took is None else f"about {fmt.duration(took)}"
        return f"{affected} Then the engine starts anew; downtime {downtime}."
    raise ValueError(method)


def deadline_s(method: str, snapshot: Snapshot | None, drain_s: float | None = None) -> float:
    """How long the outcome may take to come before it counts as unknown."""
    wait_s = (HOST_DRAIN_S if drain_s is None else drain_s) + TEARDOWN_S
    if method == METHOD_RESTART:
        took = snapshot.engine.start_took_s or snapshot.engine.start_expected_s if snapshot is not None else None
        wait_s += FIRST_START_S if took is None else 3 * took
    return wait_s


def switch_consequence(
    forecast: SwitchForecast, snapshot: Snapshot | None, drain_s: float | None = None, age_s: float = 0.0
) -> str:
    """`age_s`: how long ago the forecast was made; its shares are of the requests of then, the counts are of now."""
    if snapshot is None:
        return "The host has sent no values yet, so what this would interrupt is unknown."
    if (other := snapshot.engine.switch) is not None:
        return f"Not now: {who_switches(other)}. The host would refuse this one."
    before, after = name(forecast.from_profile), name(forecast.to_profile)
    now = f"In flight now: {_requests(snapshot)}."
    if forecast.tier in {Tier.NONE, Tier.LIVE}:
        return f"{before} → {after}, {forecast.tier.value}.\n{now} None of them notices."
    gap = (
        "how long is unknown, as no such switch was timed yet"
        if forecast.expected_gap_s is None
        else f"about {fmt.span(forecast.expected_gap_s)}"
    )
    when = f"By the dry run of {fmt.duration(age_s)} ago" if age_s >= 1.0 else "Of these"
    patience = f"{before}'s drain time" if drain_s is None else fmt.duration(drain_s)
    drained = f"{fmt.count(forecast.will_drain)} drained" + (
        f" (they get {patience} to finish, then end with an error)" if forecast.will_drain else ""
    )
    return (
        f"{before} → {after} by {forecast.tier.value}: streams pause ({gap}).\n{now}\n"
        f"{when}, {fmt.count(forecast.will_carry)} are carried over, {drained}, "
        f"{fmt.count(forecast.will_replay)} begun again. New requests wait at the gate.\n"
        f"If it fails, the host goes back to {before} by itself."
    )


def name(text: str) -> str:
    """A name from outside, within a sentence: a consequence must fit on the screen with several of them."""
    from console.lines import clip  # which needs rich: only for a person

    return clip(fmt.clean(text), NAME_CELLS)


def who_switches(progress: SwitchProgress) -> str:
    """For a refusal: who, what, since when."""
    return (
        f"{name(progress.who)} is switching {name(progress.from_profile)} → {name(progress.to_profile)} "
        f"since {fmt.clock(progress.since)} ({fmt.duration(progress.elapsed_s)} ago)"
    )


def cancel_consequence(progress: SwitchProgress | None) -> str:
    if progress is None:
        return "The switch has ended meanwhile; there is nothing to cancel."
    return (
        f"{who_switches(progress)}. Cancelled, {name(progress.from_profile)} goes on as before; "
        "requests held at the gate go to it."
    )


def abort_consequence(row: RequestRow | None) -> str:
    if row is None:
        return "It has ended meanwhile, or is no longer listed; there is nothing to abort."
    most = f" of at most {fmt.count(row.max_tokens)}" if row.max_tokens is not None else ""
    holds = f", {fmt.many(row.blocks, 'KV block')} held" if row.blocks is not None else ""
    trouble = f" {fmt.clean(row.trouble)}." if row.trouble else ""
    return (
        f"It is {fmt.clean(row.state)}, {fmt.span(row.age_s)} old: {fmt.many(row.generated_tokens, 'token')}{most} "
        f"generated{holds}.{trouble} Its client gets an error, also where part of the answer was sent; the request "
        "cannot be brought back. Other answers of the same call end with it; no other client is affected."
    )


def switch_deadline_s(
    snapshot: Snapshot | None, forecast: SwitchForecast | None = None, drain_s: float | None = None
) -> float:
    """Room for the switch and, when it fails at its end, for the way back."""
    timed = [
        seconds
        for seconds in (
            forecast.expected_s if forecast is not None else None,
            snapshot.engine.start_took_s if snapshot is not None else None,
        )
        if seconds is not None
    ]
    start_s = max(FIRST_START_S, 3 * max(timed, default=0.0))
    return (HOST_DRAIN_S if drain_s is None else drain_s) + 2 * (TEARDOWN_S + start_s)


def _requests(snapshot: Snapshot) -> str:
    queue = snapshot.queue
    parts = [f"{fmt.count(queue.running)} running", f"{fmt.count(queue.waiting)} waiting"]
    if queue.held:
        parts.append(f"{fmt.count(queue.held)} held")
    return ", ".join(parts)
