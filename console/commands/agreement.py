"""Whether a change may be sent at all: the role, somebody who agrees, and a terminal to ask that somebody on."""

from __future__ import annotations

import asyncio
import shutil
import sys
import textwrap

from engine_host.protocol.errors import EXIT_FAILED, EXIT_INVALID, EXIT_REFUSED, OperatorError
from engine_host.protocol.methods import ALLOWED, METHODS, Hello


def need_somebody_to_ask(method: str, agreed: bool) -> None:
    if not agreed and not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise OperatorError(
            f"{method} needs somebody to agree to it, and there is no terminal to ask on.",
            "Add --yes if it is meant.",
            exit_code=EXIT_INVALID,
        )


def refuse_without_role(hello: Hello, method: str) -> None:
    """Before anybody is asked to agree to what the host would refuse anyway."""
    risk = METHODS[method].risk
    if risk not in ALLOWED[hello.role]:
        raise OperatorError(
            f"{method} is {risk.value}; as {hello.login or f'uid {hello.uid}'} you have the role {hello.role.value}.",
            "Run as a user with the admin role on that host.",
            exit_code=EXIT_REFUSED,
        )


async def agree(*said: str) -> None:
    """State the consequence, ask, and raise unless the answer is yes."""
    columns = shutil.get_terminal_size().columns
    for row in "\n".join(said).split("\n"):
        print(textwrap.fill(row, columns), file=sys.stderr)
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
