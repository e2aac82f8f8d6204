"""What the demo needs to know of a host, over its control socket: is it there, and how far is it.

The console has a full client; this is the one call that the demo cannot do without, so that `engine_host` does not
import `console`.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec

from engine_host.protocol.envelope import Message, encode_request
from engine_host.protocol.frames import MAX_FRAME_BYTES
from engine_host.protocol.snapshot import Snapshot

ANSWER_S = 10.0
"""A host answers in milliseconds; while it loads an engine on a busy machine its loop may be late by seconds."""


class HostSilent(Exception):
    """Nothing answers on the socket, or not as a host does."""


async def status(socket: Path) -> Snapshot:
    """The host's newest snapshot. Raises `HostSilent`."""
    try:
        async with asyncio.timeout(ANSWER_S):
            reader, writer = await asyncio.open_unix_connection(str(socket), limit=MAX_FRAME_BYTES)
            try:
                writer.write(encode_request(1, "status", {}))
                await writer.drain()
                while line := await reader.readline():
                    message = msgspec.json.decode(line, type=Message)
                    if message.id == 1 and isinstance(message.result, msgspec.Raw):
                        return msgspec.json.decode(message.result, type=Snapshot)
            finally:
                writer.close()
    except (OSError, ValueError, TimeoutError, msgspec.MsgspecError) as error:
        raise HostSilent(f"{socket}: {error or type(error).__name__}") from error
    raise HostSilent(f"{socket}: closed without an answer")
