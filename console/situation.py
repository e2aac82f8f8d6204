"""What an operator must know before any gauge: how fresh the screen is, and what the engine is going through.

`banner` is the one line about the screen itself (frozen, stale, no connection). `situation` is the block that takes
the gauges' place, or stands above them, in every state but serving.
"""

from __future__ import annotations

import textwrap

from console import format as fmt
from console.lines import BLANK, Line, Tone, line
from console.model import Link, State, data_age_s, is_stale
from console.switch_panels import switching_block
from console.words import ROLES
from engine_host.protocol.snapshot import Snapshot
from engine_host.protocol.snapshot import State as HostState

FAILURE_ROWS = 9
"""Rows of engine output at most: more would push the events, which tell how it came to this, off the screen."""

REASON_ROWS = 3

_NO_ENGINE = frozenset({HostState.STARTING, HostState.DEAD, HostState.RECOVERING})
"""States in which engine figures would be a page of dashes; the room goes to the reason and the events. So it does
between two engines of a switch, and once a drain has stopped the engine."""


def is_without_engine(snapshot: Snapshot) -> bool:
    return snapshot.state in _NO_ENGINE or snapshot.engine.uptime_s is None


def banner(state: State, live: State, now: float, wall: float) -> Line:
    """`state` is what is on screen, `live` what is going on underneath; they differ while frozen."""
    parts: list[tuple[str, Tone]] = []
    if live.frozen is not None:
        held_s = fmt.duration(wall - live.frozen.wall)
        parts.append((f"‖ FROZEN at {fmt.clock(live.frozen.wall)}, {held_s} ago: p goes on ", Tone.WARN))
    if live.link is Link.DOWN:
        retry = "trying now" if live.retry_at is None else f"next try in {fmt.duration(max(0.0, live.retry_at - now))}"
        gone = fmt.duration(now - live.link_since)
        parts.append((f" × NO CONNECTION for {gone}, {retry} ", Tone.BAD))
        parts.append((f" {fmt.clean(live.link_reason)}", Tone.PLAIN))
    elif live.link is Link.CONNECTING and live.snapshot is None:
        parts.append((f"connecting to {fmt.clean(live.target)}", Tone.NOTICE))
    elif is_stale(live, now):
        age = fmt.duration(data_age_s(live, now))
        parts.append((f"▲ STALE: these values are {age} old; the host sends no new ones ", Tone.WARN))
    elif live.frozen is None:
        return _calm(state)
    return tuple(parts)


def _calm(state: State) -> Line:
    """The screen is fresh: the host's own alert, else where the API is and what this operator may do."""
    if state.snapshot is None:
        return BLANK
    if alerts := state.snapshot.alerts:
        more = f"  and {len(alerts) - 1} more" if len(alerts) > 1 else ""
        return line((f"▲ {fmt.clean(alerts[0].text)}", Tone.WARN), (more, Tone.FAINT))
    role = ROLES[state.hello.role] if state.hello is not None else fmt.DASH
    login = f"{fmt.clean(state.hello.login)}, " if state.hello is not None and state.hello.login else ""
    since = max(0.0, state.snapshot.at - state.snapshot.state_since)
    word = state.snapshot.state.value
    return line(
        (f"API at {fmt.clean(state.snapshot.host.url)}   you: {login}{role}", Tone.FAINT),
        (f"   {word} for {fmt.duration(since)}", Tone.FAINT),
    )


def situation(snapshot: Snapshot, width: int, rows: int) -> list[Line]:
    """At most `rows` lines; empty while the engine simply serves."""
    progress = snapshot.engine.switch
    if progress is not None and snapshot.state is not HostState.DEAD:
        # Whatever state the host passes through on the way, the switch is what is going on.
        return switching_block(snapshot, progress, width)[:rows]
    match snapshot.state:
        case HostState.STARTING:
            return _starting(snapshot, width)[:rows]
        case HostState.DEAD:
            return _failed(snapshot, width, rows)
        case HostState.RECOVERING:
            return _failed(snapshot, width, rows)
        case HostState.DRAINING:
            return [_draining(snapshot)]
        case HostState.PAUSED:
            return [_paused(snapshot)]
        case _:
            return []


def _starting(snapshot: Snapshot, width: int) -> list[Line]:
    engine = snapshot.engine
    elapsed, expected = engine.start_elapsed_s, engine.start_expected_s
    phase = fmt.clean(engine.phase or "engine")
    in_phase = f"   {fmt.duration(engine.phase_elapsed_s)} in this phase" if engine.phase_elapsed_s is not None else ""
    share = min(1.0, elapsed / expected) if elapsed is not None and expected else None
    if expected is None:
        how_long = f"{fmt.duration(elapsed)}; first start, so no estimate"
    elif elapsed is not None and elapsed > expected:
        how_long = f"{fmt.duration(elapsed)}, longer than the {fmt.duration(expected)} of last time"
    else:
        how_long = f"{fmt.duration(elapsed)} of about {fmt.duration(expected)}"
    return [
        line(("Starting   ", Tone.LABEL), (phase, Tone.STRONG), in_phase),
        line(" " * 11, (fmt.bar(share, max(10, min(40, width - 60))), Tone.BAR), f"  {how_long}"),
        line(" " * 11, ("Requests are answered with 503 until the engine serves.", Tone.FAINT)),
    ]


def _draining(snapshot: Snapshot) -> Line:
    queue = snapshot.queue
    # The host says how many it waits for and for how long at most: the figures of its own gate and clock.
    left = (snapshot.engine.phase or "").removeprefix("draining: ")
    if not left and snapshot.engine.uptime_s is None:
        left = "nothing left, engine stopped"
    elif not left:
        unfinished = (queue.running or 0) + (queue.waiting or 0) + (queue.held or 0)
        left = f"{fmt.many(unfinished, 'request')} left to finish"
    since = max(0.0, snapshot.at - snapshot.state_since)
    return line(
        ("  ▽ Draining ", Tone.WARN), f"for {fmt.duration(since)}: {fmt.clean(left)}; new requests are refused."
    )


def _paused(snapshot: Snapshot) -> Line:
    since = max(0.0, snapshot.at - snapshot.state_since)
    held = fmt.many(snapshot.queue.held, "request")
    return line(
        ("  ◦ Paused ", Tone.WARN),
        f"for {fmt.duration(since)}: {held} held; `vllm-console resume` lets them in.",
    )


def _failed(snapshot: Snapshot, width: int, rows: int) -> list[Line]:
    """Dead or on the way back: the reason, the engine's own last words, and what to do."""
    engine = snapshot.engine
    failure = engine.failure
    reason = fmt.clean(failure.reason) if failure else "the engine ended; the host does not say why"
    when = f"{fmt.clock(failure.at)} " if failure else ""
    crashes = f"{engine.crashes_in_window} of {engine.crash_limit} crashes in 5 min"
    if snapshot.state is HostState.RECOVERING or engine.restart_in_s is not None:
        next_step = (
            f"restarts in {fmt.duration(engine.restart_in_s)}" if engine.restart_in_s is not None else "restarts"
        )
        remedy = f"The host {next_step} by itself ({crashes})."
    else:
        remedy = f"The host has given up ({crashes}). Mend the cause, then restart (R here, or `vllm-console restart`)."
    lines = (failure.lines or failure.last_lines) if failure else []
    said = [text for text in (fmt.clean(t).rstrip() for t in lines) if text]
    head = [
        line((f" × ENGINE FAILED {when}", Tone.BAD)),
        *(line("  ", (text, Tone.STRONG)) for text in _wrapped(reason, width - 4)[:REASON_ROWS]),
    ]
    tail = [line(("  → " if i == 0 else "    ", Tone.KEY), text) for i, text in enumerate(_wrapped(remedy, width - 5))]
    room = min(FAILURE_ROWS, rows - len(head) - len(tail) - 1)
    if said and room > 0:
        # From the end: an engine says what broke it in its last line.
        words = [part for text in said for part in _wrapped(text, width - 6)][-room:]
        what = "The engine's last error lines:" if failure and failure.lines else "It printed no error; its last lines:"
        head.append(line((f"  {what}", Tone.FAINT)))
        head += [line(("  │ ", Tone.FAINT), text) for text in words]
    return [*head, *tail][:rows]


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, max(20, width)) or [""]
