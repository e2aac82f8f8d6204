"""`restart` and `stop`: changing calls, agreed to with the consequences in sight, sent once, waited for.

The answer comes when the change is in force; `stop` then waits until the host has let go of its socket and port, so
that another can be started at once. When the answer does not come (deadline, lost connection) the outcome is unknown
and exit 5 says so; sending again is the operator's decision, never ours.
"""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path
from typing import TypeVar

import msgspec

from console import format as fmt
from console.call_errors import CallFailed, ConnectionLost, NoAnswer
from console.client import Client, connected, decoded
from console.commands.agreement import agree, need_somebody_to_ask, refuse_without_role
from console.commands.output import write_json
from console.connect import Target, resolve
from console.consequence import consequence, deadline_s
from engine_host.protocol.errors import EXIT_DONE, EXIT_TIMED_OUT, OperatorError
from engine_host.protocol.methods import METHODS, Applied
from engine_host.protocol.snapshot import Snapshot

ENDING_S = 20.0
"""What a host gets to end after its engine is stopped: responses still being read hold its port for some seconds."""

ENDING_POLL_S = 0.05

V = TypeVar("V")


def change(
    target: str | None,
    method: str,
    *,
    drain_s: float | None,
    reason: str,
    agreed: bool,
    timeout_s: float | None,
    as_json: bool,
) -> int:
    need_somebody_to_ask(method, agreed)
    raw = asyncio.run(_change(resolve(target), method, drain_s, reason, agreed, timeout_s))
    applied = decoded(raw, Applied, method)
    if as_json:
        write_json(bytes(raw))
    else:
        # The host has ended by now, and was draining when it answered.
        stands = "" if method == "host.stop" else f"; the host is now {applied.state.value}"
        print(f"{fmt.clean(applied.text)} (took {fmt.latency(applied.took_s)}{stands})")
    return EXIT_DONE


async def _change(
    target: Target, method: str, drain_s: float | None, reason: str, agreed: bool, timeout_s: float | None
) -> msgspec.Raw:
    async with connected(target.path) as client:
        inode = _inode(target.path)
        refuse_without_role(client.hello, method)
        snapshot = await client.read("status", Snapshot)
        if not agreed:
            name = fmt.clean(snapshot.host.name)
            asked = f"{METHODS[method].summary} on {name} ({snapshot.state.value})."
            await agree(asked, consequence(method, snapshot, drain_s))
        params = METHODS[method].params(
            reason=reason,
            idempotency_key=uuid.uuid4().hex,
            # Who agreed to the numbers on screen agreed to that state; who said --yes did not look.
            expected_state_version=None if agreed else snapshot.state_version,
            drain_timeout_s=drain_s,
        )
        waiting_s = timeout_s if timeout_s is not None else deadline_s(method, snapshot, drain_s)
        applied = await sent_once(client, method, params, waiting_s)
        if method == "host.stop":
            await until_ended(client, target.path, inode, ENDING_S)
        return applied


async def sent_once(
    client: Client, method: str, params: msgspec.Struct, waiting_s: float, how_to_ask: str | None = None
) -> msgspec.Raw:
    """The outcome. Raises `OperatorError`, with `EXIT_TIMED_OUT` when it is unknown: nothing is sent again.

    `how_to_ask` for it then, where there is a better way than the client's own remedy.
    """
    try:
        return await client.call(method, params, waiting_s)
    except NoAnswer as error:
        raise OperatorError(
            error.fact, f"{await standing(client)} {how_to_ask or error.remedy}", exit_code=EXIT_TIMED_OUT
        ) from None
    except ConnectionLost as error:
        raise OperatorError(
            f"the connection was lost before the outcome of {method} came: {error.reason}.",
            f"The outcome is unknown; it was not sent again. {how_to_ask or error.remedy}",
            exit_code=EXIT_TIMED_OUT,
        ) from None


def each_once(pairs: list[tuple[str, V]], noun: str) -> dict[str, V]:
    """Names with their values, as given on the command line. Raises `OperatorError` for one that is given twice."""
    values = dict(pairs)
    for name in values:
        if sum(other == name for other, _ in pairs) > 1:
            raise OperatorError(f"{name} is given more than once.", f"Give each {noun} one value.")
    return values


async def until_ended(client: Client, path: Path, inode: tuple[int, int] | None, deadline_s: float) -> None:
    """Return when the host has closed its connections and its socket is gone, or is another host's.

    `inode`: of the socket while the host listened. Raises `OperatorError` at the deadline.
    """
    try:
        async with asyncio.timeout(deadline_s):
            await client.wait_closed()
            # Polled: nobody tells of the end of a file.
            while inode is not None and _inode(path) == inode:  # noqa: ASYNC110
                await asyncio.sleep(ENDING_POLL_S)
    except TimeoutError:
        raise OperatorError(
            f"the engine is stopped, but its host has not ended within {deadline_s:g} s: it still holds {path}.",
            f"See whether it still runs: vllm-console -t {path} status",
            exit_code=EXIT_TIMED_OUT,
        ) from None


def _inode(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


async def standing(client: Client) -> str:
    """Where the host stands, for the message that the outcome is unknown."""
    try:
        snapshot = await client.read("status", Snapshot, deadline_s=2.0)
    except (NoAnswer, ConnectionLost, CallFailed):
        return "The host does not answer."
    if snapshot.queue.running is None:
        return f"The host is {snapshot.state.value}{_doing(snapshot)}; no engine runs now."
    return f"The host is {snapshot.state.value}, with {fmt.many(snapshot.queue.running, 'request')} running."


def _doing(snapshot: Snapshot) -> str:
    return f" ({fmt.clean(snapshot.engine.phase)})" if snapshot.engine.phase else ""
