"""`status` and `watch`: snapshots, once or as a stream."""

from __future__ import annotations

import asyncio
import sys

import msgspec

from console.client import connected, decoded
from console.commands.output import width, write_json, write_lines
from console.connect import Target, resolve
from engine_host.protocol.errors import EXIT_DONE
from engine_host.protocol.methods import SubscribeTelemetry
from engine_host.protocol.snapshot import Snapshot

HEAD_EVERY = 20
"""Lines of `watch` between two headings on a terminal, so that one is always in sight."""


def status(target: str | None, *, as_json: bool) -> int:
    raw = asyncio.run(_status(resolve(target)))
    snapshot = decoded(raw, Snapshot, "status")
    if as_json:
        write_json(bytes(raw))
    else:
        from console.commands.screen import status_lines

        write_lines(status_lines(snapshot, width()))
    return EXIT_DONE


async def _status(target: Target) -> msgspec.Raw:
    async with connected(target.path) as client:
        return await client.call("status")


def watch(target: str | None, *, interval_s: float, count: int | None, as_json: bool) -> int:
    asyncio.run(_watch(resolve(target), interval_s, count, as_json))
    return EXIT_DONE


async def _watch(target: Target, interval_s: float, count: int | None, as_json: bool) -> None:
    printed = 0
    enough = asyncio.Event()

    def show(method: str, params: msgspec.Raw) -> None:
        nonlocal printed
        if method != "telemetry" or enough.is_set():
            return
        snapshot = decoded(params, Snapshot, "telemetry")
        if as_json:
            write_json(bytes(params))
        else:
            from console.commands.screen import WATCH_HEAD, watch_line

            if printed == 0 or (sys.stdout.isatty() and printed % HEAD_EVERY == 0):
                write_lines([WATCH_HEAD])
            write_lines([watch_line(snapshot)])
        printed += 1
        if printed == count:
            enough.set()

    async with connected(target.path, show) as client:
        await client.call("telemetry.subscribe", SubscribeTelemetry(interval_s=interval_s))
        await client.wait_closed_or(enough)
