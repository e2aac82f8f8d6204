"""`requests`: the unfinished requests listed; one ended, agreed to with what it has got so far in sight."""

from __future__ import annotations

import argparse
import asyncio
import uuid

import msgspec

from console import format as fmt
from console.client import Client, connected, decoded
from console.commands.agreement import agree, need_somebody_to_ask, refuse_without_role
from console.commands.change import sent_once
from console.commands.output import width, write_json, write_lines
from console.connect import Target, resolve
from console.consequence import METHOD_ABORT, abort_consequence
from engine_host.protocol.errors import EXIT_DONE, EXIT_INVALID, OperatorError
from engine_host.protocol.methods import Applied, RequestAbort, RequestList, RequestOrder, RequestRow, RequestsList

_NAMESAKES = 2_000
"""Requests looked at for the one that is meant: those whose id contains what was given."""


def requests(arguments: argparse.Namespace) -> int:
    return _list(arguments) if arguments.action == "list" else _abort(arguments)


def _list(arguments: argparse.Namespace) -> int:
    asked = RequestsList(
        order=RequestOrder(arguments.sort), state=arguments.state, match=arguments.match, limit=arguments.limit
    )
    raw = asyncio.run(_listed(resolve(arguments.target), asked))
    found = decoded(raw, RequestList, "requests.list")
    if arguments.json:
        write_json(bytes(raw))
    else:
        from console.commands.inside_text import request_lines

        write_lines(request_lines(found, width()))
    return EXIT_DONE


async def _listed(target: Target, asked: RequestsList) -> msgspec.Raw:
    async with connected(target.path) as client:
        return await client.call("requests.list", asked)


def _abort(arguments: argparse.Namespace) -> int:
    need_somebody_to_ask(METHOD_ABORT, arguments.yes)
    raw = asyncio.run(_aborted(resolve(arguments.target), arguments))
    applied = decoded(raw, Applied, METHOD_ABORT)
    if arguments.json:
        write_json(bytes(raw))
    else:
        print(fmt.clean(applied.text))
    return EXIT_DONE


async def _aborted(target: Target, arguments: argparse.Namespace) -> msgspec.Raw:
    async with connected(target.path) as client:
        refuse_without_role(client.hello, METHOD_ABORT)
        wanted = arguments.id
        if not arguments.yes:
            found = await _meant(client, wanted)
            await agree(f"End the request {fmt.clean(found.id)}.", abort_consequence(found))
            wanted = found.id
        order = RequestAbort(id=wanted, reason=arguments.reason, idempotency_key=uuid.uuid4().hex)
        return await sent_once(client, METHOD_ABORT, order, arguments.timeout)


async def _meant(client: Client, wanted: str) -> RequestRow:
    """The request that is to be agreed to; the host looks again, for the id that was agreed to."""
    asked = RequestsList(match=wanted, limit=_NAMESAKES)
    found = [
        row for row in (await client.read("requests.list", RequestList, asked)).requests if row.id.startswith(wanted)
    ]
    exact = [row for row in found if row.id == wanted]
    if len(exact or found) == 1:
        return (exact or found)[0]
    if not found:
        raise OperatorError(
            f"no unfinished request begins with {fmt.clean(wanted)}.",
            "It may have ended meanwhile. See: vllm-console requests list",
            exit_code=EXIT_INVALID,
        )
    raise OperatorError(
        f"{len(found)} requests begin with {fmt.clean(wanted)}.",
        f"Give more of the id, one is {fmt.clean(found[0].id)}",
        exit_code=EXIT_INVALID,
    )
