"""Runs the TUI on this process's terminal and leaves the terminal as it was, however the TUI ends."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from console.connect import is_listening, resolve
from console.display import has_colours, is_dumb
from engine_host.protocol.errors import EXIT_DONE, EXIT_FAILED, EXIT_INVALID, EXIT_UNREACHABLE, OperatorError
from engine_host.protocol.sockets import QUIT_STOPS_HOST

if TYPE_CHECKING:
    from console.tui.app import ConsoleApp

ENDINGS = (signal.SIGTERM, signal.SIGHUP)
"""Signals that mean: go, in good order."""


def run(target: str | None) -> int:
    """Returns the exit code. Refuses before drawing anything where there is nothing to draw on or attach to."""
    # Standard error too: that is the stream Textual draws on.
    if not (sys.stdin.isatty() and sys.stdout.isatty() and sys.stderr.isatty()):
        raise OperatorError(
            "the console needs a terminal on standard input, output and error.",
            "For a script: vllm-console status --json",
            exit_code=EXIT_INVALID,
        )
    if is_dumb(sys.stderr):
        raise OperatorError(
            f"TERM is {os.environ.get('TERM', '')!r}: this terminal cannot be drawn on.",
            "Set TERM (for example TERM=xterm-256color), or use: vllm-console watch",
            exit_code=EXIT_INVALID,
        )
    found = resolve(target)
    # Only at the start: once on screen, a lost host is a banner and the console waits for it.
    if not is_listening(found.path):
        raise OperatorError(
            f"no engine host listens at {found}: the one that made this socket has ended.",
            "Start one with: engine-host serve PROFILE",
            exit_code=EXIT_UNREACHABLE,
        )
    # Textual knows NO_COLOR alone, and takes an empty one for set.
    if has_colours(sys.stderr):
        os.environ.pop("NO_COLOR", None)
    else:
        os.environ["NO_COLOR"] = "1"
    from console.tui.app import ConsoleApp

    app = ConsoleApp(found, quit_stops_host=bool(os.environ.get(QUIT_STOPS_HOST)))
    asyncio.run(_on_screen(app))
    if app.broke_by is not None:
        raise OperatorError(
            f"the console broke: {type(app.broke_by).__name__}: {app.broke_by}. The host is not affected.",
            f"Start it again; the details for a report are in {_kept(app.broke_by)}.",
            exit_code=EXIT_FAILED,
        )
    return EXIT_DONE


async def _on_screen(app: ConsoleApp) -> None:
    # Left to themselves these would end the process with the terminal still in raw mode on the alternate screen.
    for ending in ENDINGS:
        asyncio.get_running_loop().add_signal_handler(ending, app.exit)
    await app.run_async(mouse=False)


def _kept(error: BaseException) -> str:
    """Write the traceback where a developer can get it; returns where."""
    state = Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser() / "vllm-console"
    log = state / "console-crash.log"
    try:
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
        log.write_text("".join(traceback.format_exception(error)), encoding="utf-8")
    except OSError as failed:
        return f"no file ({log}: {failed.strerror})"
    return str(log)
