"""`profiles reload`: has a host look at its profiles anew and tell what changed. Not confirmed: no engine notices."""

from __future__ import annotations

import asyncio
import uuid

import msgspec

from console.client import connected, decoded
from console.commands.agreement import refuse_without_role
from console.commands.output import write_json
from console.connect import Target, resolve
from engine_host.protocol.errors import EXIT_DONE
from engine_host.protocol.methods import Reloaded, ReloadParams

METHOD = "profiles.reload"

DEADLINE_S = 30.0
"""Reading some dozen files takes milliseconds, on a shared disk that stalls some seconds."""


def reload(target: str | None, reason: str, *, as_json: bool) -> int:
    raw = asyncio.run(_reload(resolve(target), reason))
    reloaded = decoded(raw, Reloaded, METHOD)
    if as_json:
        write_json(bytes(raw))
    else:
        from console.commands.output import write_lines
        from console.commands.profiles_text import reload_lines

        write_lines(reload_lines(reloaded.changes))
    return EXIT_DONE


async def _reload(target: Target, reason: str) -> msgspec.Raw:
    async with connected(target.path) as client:
        refuse_without_role(client.hello, METHOD)
        return await client.call(METHOD, ReloadParams(reason=reason, idempotency_key=uuid.uuid4().hex), DEADLINE_S)
