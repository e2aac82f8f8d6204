"""`throttle`, `pause` and `resume`: the limits at the gate, shown and changed.

Not confirmed: no request in flight is touched, and `--for`, `throttle clear` and `resume` are the way back. A change is
answered once the gate goes by it.
"""

from __future__ import annotations

import argparse
import asyncio
import time
import uuid
from collections.abc import Mapping
from typing import Any

import msgspec

from console import format as fmt
from console.client import connected, decoded
from console.commands.agreement import refuse_without_role
from console.commands.change import each_once, sent_once
from console.commands.output import width, write_json, write_lines
from console.connect import Target, resolve
from engine_host.protocol.errors import EXIT_DONE, OperatorError
from engine_host.protocol.methods import (
    Change,
    PauseParams,
    ResumeParams,
    ThrottleApplied,
    ThrottleAuto,
    ThrottleClear,
    ThrottleSet,
)
from engine_host.protocol.snapshot import State
from engine_host.protocol.throttling import AutoMode, Limit, LimitName, LimitValue, ThrottleSheet

HOW_TO_ASK = "See what is in force: vllm-console throttle show"


def throttle(arguments: argparse.Namespace) -> int:
    """`throttle ACTION`, `pause` or `resume`."""
    action = arguments.action if arguments.command == "throttle" else arguments.command
    if action == "show":
        return _show(resolve(arguments.target), as_json=arguments.json)
    method = action if arguments.command != "throttle" else f"throttle.{action}"
    order = _order(action, arguments)
    raw = asyncio.run(_change(resolve(arguments.target), method, order, arguments.timeout))
    applied = decoded(raw, ThrottleApplied, method)
    if arguments.json:
        write_json(bytes(raw))
    else:
        print(f"{fmt.clean(applied.text)} ({_after(applied)})")
    return EXIT_DONE


def _show(target: Target, *, as_json: bool) -> int:
    raw = asyncio.run(_get(target))
    sheet = decoded(raw, ThrottleSheet, "throttle.get")
    if as_json:
        write_json(bytes(raw))
    else:
        from console.throttle_panels import throttle_lines

        write_lines(throttle_lines(sheet, max(80, width()), time.time()))
    return EXIT_DONE


def _order(action: str, arguments: argparse.Namespace) -> Change:
    common: dict[str, Any] = {"reason": arguments.reason, "idempotency_key": uuid.uuid4().hex}
    if action == "auto":
        seen = None if arguments.expect is None else AutoMode(arguments.expect)
        return ThrottleAuto(mode=AutoMode(arguments.mode), expected=seen, for_s=arguments.for_s, **common)
    common["expected"] = each_once(arguments.expect, "limit") or None
    match action:
        case "set":
            return ThrottleSet(limits=_limits(arguments), for_s=arguments.for_s, **common)
        case "clear":
            return ThrottleClear(names=arguments.names, **common)
        case "pause":
            return PauseParams(for_s=arguments.for_s, **common)
        case _:
            return ResumeParams(**common)


def _limits(arguments: argparse.Namespace) -> dict[str, LimitValue]:
    """Those that were given: none is not the same as not given."""
    given = vars(arguments)
    limits: dict[str, LimitValue] = {str(name): given[name] for name in LimitName if name in given}
    if not limits:
        raise OperatorError("throttle set wants a limit to set.", "See: vllm-console throttle set --help")
    return limits


def _after(applied: ThrottleApplied) -> str:
    """How long it took, and where the host stands if that is not simply serving."""
    took = f"applied in {fmt.latency(applied.took_s)}"
    if applied.state is State.SERVING:
        return took
    limits = applied.throttle.limits
    closed = {word: one for name, word in _CLOSED.items() if (one := limits.get(name)) and one.value}
    return f"{took}; the host is {applied.state.value}{_until(closed)}"


_CLOSED = {LimitName.PAUSED: "paused", LimitName.DRAINING: "draining"}


def _until(closed: Mapping[str, Limit]) -> str:
    """How long these limits keep the gate closed, and what keeps it closed after them."""
    ends = [one.until for one in closed.values() if one.until is not None]
    if not closed:
        return ""
    if len(ends) < len(closed):
        return " until `vllm-console resume`"
    until = f" until {fmt.clock(max(ends))}"
    for word, one in closed.items():
        if (then := one.then) is not None and then.value:
            by = f", by {fmt.clean(then.who)}" if then.who is not None else ""
            why = f": {fmt.clean(then.reason)}" if then.reason else ""
            return f"{until}, then {word} as before{by}{why}"
    return until


async def _get(target: Target) -> msgspec.Raw:
    async with connected(target.path) as client:
        return await client.call("throttle.get")


async def _change(target: Target, method: str, order: Change, timeout_s: float) -> msgspec.Raw:
    async with connected(target.path) as client:
        refuse_without_role(client.hello, method)
        return await sent_once(client, method, order, timeout_s, HOW_TO_ASK)
