"""`dial`: the live limits of the scheduler, shown and set.

Not confirmed: no request fails because of a dial, and `--for` and `NAME=start` are the way back. A set is answered
once the scheduler goes by it.
"""

from __future__ import annotations

import argparse
import asyncio
import uuid

import msgspec

from console import format as fmt
from console.client import connected, decoded
from console.commands.agreement import refuse_without_role
from console.commands.change import each_once, sent_once
from console.commands.output import write_json, write_lines
from console.connect import Target, resolve
from console.consequence import DIAL_DEADLINE_S, METHOD_DIALS
from engine_host.protocol.errors import EXIT_DONE, OperatorError
from engine_host.protocol.methods import DialsApplied, DialSheet, DialsSet


def dial(arguments: argparse.Namespace) -> int:
    if not arguments.values:
        _refuse_without_values(arguments)
        raw = asyncio.run(_get(resolve(arguments.target)))
        sheet = decoded(raw, DialSheet, "dials.get")
        if arguments.json:
            write_json(bytes(raw))
        else:
            from console.commands.inside_text import dial_lines

            write_lines(dial_lines(sheet))
        return EXIT_DONE
    order = _order(arguments)
    raw = asyncio.run(_set(resolve(arguments.target), order, arguments.timeout or DIAL_DEADLINE_S))
    applied = decoded(raw, DialsApplied, METHOD_DIALS)
    if arguments.json:
        write_json(bytes(raw))
    else:
        print(f"{fmt.clean(applied.text)} (applied in {fmt.latency(applied.took_s)})")
    return EXIT_DONE


def _refuse_without_values(arguments: argparse.Namespace) -> None:
    options = {"--for": arguments.for_s, "--reason": arguments.reason, "--expect": arguments.expect}
    given = [option for option, value in options.items() if value]
    if given:
        raise OperatorError(f"{given[0]} goes with a dial to set.", "See: vllm-console dial --help")


def _order(arguments: argparse.Namespace) -> DialsSet:
    return DialsSet(
        values=each_once(arguments.values, "dial"),
        for_s=arguments.for_s,
        expected=each_once(arguments.expect, "dial") or None,
        reason=arguments.reason,
        idempotency_key=uuid.uuid4().hex,
    )


async def _get(target: Target) -> msgspec.Raw:
    async with connected(target.path) as client:
        return await client.call("dials.get")


async def _set(target: Target, order: DialsSet, timeout_s: float) -> msgspec.Raw:
    async with connected(target.path) as client:
        refuse_without_role(client.hello, METHOD_DIALS)
        return await sent_once(client, METHOD_DIALS, order, timeout_s)
