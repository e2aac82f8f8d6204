"""`restart` and `stop`: changing calls, agreed to with the consequences in sight, sent once, waited for.

The answer comes when the change is in force; `stop` then waits until the host has let go of its socket and port, so
that another can be started at once. When the answer does not come (deadline, lost connection) the outcome is unknown
and exit 5 says so; sending again is the operator's decision, never ours.
"""

from __future__ import annotations

import asyncio
import sys
import uuid
from pathlib import Path

import msgspec

from console import format as fmt
from console.client import CallFailed, Client, ConnectionLost, NoAnswer, connected, decoded
from console.commands.output import write_json
from console.connect import Target, resolve
from console.consequence import consequence, deadline_s
from engine_host.protocol.errors import (
    EXIT_DONE,
    EXIT_FAILED,
    EXIT_INVALID,
    EXIT_REFUSED,
    EXIT_TIMED_OUT,
    OperatorError,
)
from engine_host.protocol.methods import ALLOWED, METHODS, Applied, Hello
from engine_host.protocol.snapshot import Snapshot

ENDING_S = 20.0
"""What a host gets to end after its engine is stopped: responses still being read hold its port for some seconds."""

ENDING_POLL_S = 0.05


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
    if not agreed and not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise OperatorError(
            f"{method} needs somebody to agree to it, and there is no terminal to ask on.",
            "Add --yes if it is meant.",
            exit_code=EXIT_INVALID,
        )
    raw = asyncio.run(_change(resolve(target), method, drain_s, reason, agreed, timeout_s))
    applied = decoded(raw, Applied, method)
    if as_json:
        write_json(bytes(raw))
    else:
        print(f"{fmt.clean(applied.text)} (took {fmt.latency(applied.took_s)}; the host is now {applied.state.value})")
    return EXIT_DONE


async def _change(
    target: Target, method: str, drain_s: float | None, reason: str, agreed: bool, timeout_s: float | None
) -> msgspec.Raw:
    async with connected(target.path) as client:
        inode = _inode(target.path)
        _refuse_without_role(client.hello, method)
        snapshot = await client.read("status", Snapshot)
        if not agreed:
            await _ask(method, snapshot, drain_s)
        params = METHODS[method].params(
            reason=reason,
            idempotency_key=uuid.uuid4().hex,
            # Who agreed to the numbers on screen agreed to that state; who said --yes did not look.
            expected_state_version=None if agreed else snapshot.state_version,
            drain_timeout_s=drain_s,
        )
        waiting_s = timeout_s if timeout_s is not None else deadline_s(method, snapshot, drain_s)
        try:
            applied = await client.call(method, params, waiting_s)
        except NoAnswer as error:
            raise OperatorError(
                error.fact, f"{await _standing(client)} {error.remedy}", exit_code=EXIT_TIMED_OUT
            ) from None
        except ConnectionLost as error:
            raise OperatorError(
                f"the connection was lost before the outcome of {method} came: {error.reason}.",
                "The outcome is unknown; it was not sent again. " + error.remedy,
                exit_code=EXIT_TIMED_OUT,
            ) from None
        if method == "host.stop":
            await until_ended(client, target.path, inode, ENDING_S)
        return applied


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


def _refuse_without_role(hello: Hello, method: str) -> None:
    """Before anybody is asked to agree to what the host would refuse anyway."""
    risk = METHODS[method].risk
    if risk not in ALLOWED[hello.role]:
        raise OperatorError(
            f"{method} is {risk.value}; as {hello.login or f'uid {hello.uid}'} you have the role {hello.role.value}.",
            "Run as a user with the admin role on that host.",
            exit_code=EXIT_REFUSED,
        )


async def _ask(method: str, snapshot: Snapshot, drain_s: float | None) -> None:
    name = fmt.clean(snapshot.host.name)
    print(f"{METHODS[method].summary} on {name} ({snapshot.state.value}).", file=sys.stderr)
    print(consequence(method, snapshot, drain_s), file=sys.stderr)
    print("Go on? [y/N] ", end="", file=sys.stderr, flush=True)
    # The loop goes on meanwhile; a thread blocked in readline would hold up ctrl-C until somebody presses enter.
    answered = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(sys.stdin, answered.set)
    try:
        await answered.wait()
    finally:
        loop.remove_reader(sys.stdin)
    answer = sys.stdin.readline()
    if answer.strip().lower() not in {"y", "yes"}:
        raise OperatorError("nothing was done.", exit_code=EXIT_FAILED)


async def _standing(client: Client) -> str:
    """Where the host stands, for the message that the outcome is unknown."""
    try:
        snapshot = await client.read("status", Snapshot, deadline_s=2.0)
    except (NoAnswer, ConnectionLost, CallFailed):
        return "The host does not answer."
    return f"The host is {snapshot.state.value}, with {fmt.count(snapshot.queue.running)} requests running."
