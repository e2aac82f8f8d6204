"""`events`: what the host says happened, past and, with `--follow`, as it happens."""

from __future__ import annotations

import asyncio
import sys

import msgspec

from console.client import connected, decoded
from console.commands.output import write_json, write_lines
from console.connect import Target, resolve
from engine_host.protocol.errors import EXIT_DONE
from engine_host.protocol.events import Event
from engine_host.protocol.methods import EventList, EventsList, SubscribeEvents

_encode = msgspec.json.Encoder().encode


def events(target: str | None, *, after: int, limit: int, follow: bool, as_json: bool) -> int:
    asyncio.run(_events(resolve(target), after, limit, follow, as_json))
    return EXIT_DONE


async def _events(target: Target, after: int, limit: int, follow: bool, as_json: bool) -> None:
    def arrived(method: str, params: msgspec.Raw) -> None:
        if method == "event":
            _write(decoded(params, Event, "event"), as_json)

    async with connected(target.path, arrived) as client:
        kept = await client.read("events.list", EventList, EventsList(after_seq=after, limit=limit))
        if kept.missed:
            # Said where a script's JSON stays clean: the list starts later than was asked for.
            print(f"vllm-console: some events after {after} are no longer kept by the host.", file=sys.stderr)
        for event in kept.events:
            _write(event, as_json)
        if follow:
            await client.call("events.subscribe", SubscribeEvents(after_seq=kept.last_seq))
            await client.wait_closed_or(asyncio.Event())


def _write(event: Event, as_json: bool) -> None:
    if as_json:
        write_json(_encode(event))
        return
    from console.lines import line
    from console.panels import event_pieces

    write_lines([line(f"{event.seq:>6}  ", *event_pieces(event, with_date=True))])
