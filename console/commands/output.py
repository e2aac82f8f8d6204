"""How the commands write: JSON lines as the host wrote them, or styled lines for a person."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

from console.display import has_colours, is_dumb

if TYPE_CHECKING:
    from console.lines import Line

PIPE_WIDTH = 120
"""Columns for a person's text that goes into a file or a pipe."""


def write_json(frame: bytes) -> None:
    """One object, one line, out at once: a script at the other end of the pipe is waiting for it."""
    sys.stdout.buffer.write(bytes(frame) + b"\n")
    sys.stdout.buffer.flush()


def width() -> int:
    return shutil.get_terminal_size((PIPE_WIDTH, 24)).columns if sys.stdout.isatty() else PIPE_WIDTH


def write_lines(lines: Iterable[Line]) -> None:
    """As much colour and emphasis as standard output can show; none in a pipe."""
    from rich.console import Console
    from rich.text import Text

    from console.lines import STYLES

    console = Console(
        file=sys.stdout,
        width=width(),
        color_system=None if is_dumb(sys.stdout) else "standard",
        no_color=not has_colours(sys.stdout),
        highlight=False,
        soft_wrap=True,
    )
    # Captured and written here: rich answers a closed pipe with SystemExit(1), and `| head` is no failure.
    with console.capture() as styled:
        for row in lines:
            text = Text.assemble(*((piece, STYLES[tone]) for piece, tone in row))
            text.rstrip()
            console.print(text, no_wrap=True, crop=False, overflow="ignore")
    sys.stdout.write(styled.get())
    sys.stdout.flush()
