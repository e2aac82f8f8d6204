"""What this process's terminal can show: which characters, and whether colours.

An operator's locale is what it is: a serial console in ASCII, an old ssh client in Latin-1, a vt100. Glyphs that the
encoding lacks are written as ASCII ones of the same width, so that no command fails for a bullet and columns keep
their place.
"""

from __future__ import annotations

import codecs
import io
import os
import sys
import unicodedata
from typing import TextIO

_PAIRS = (
    ("▁▂▃▄▅▆▇█▌░", "_.:-=+*#+."),
    ("●◌◦▽↻×✗✓▲▸›·", "*o=v@xx+!>>."),
    ("→↔↑↓‖│–…°µ", ">~^v||-~ u"),
    ("─━═", "---"),
    ("┌┐└┘├┤┬┴┼╭╮╯╰", "+" * 13),
)
STAND_INS = {glyph: ascii_ for glyphs, plain in _PAIRS for glyph, ascii_ in zip(glyphs, plain, strict=True)}
"""Each one cell wide, like what it stands for."""

ERRORS = "vllm-console-glyphs"
"""Our name among the codecs' error handlers."""

DUMB = frozenset({"", "dumb", "unknown"})
"""Values of TERM that promise nothing but lines of text."""


def write_what_can_be_shown() -> None:
    """From here on nothing printed raises for its characters. Standard output and error must not have been replaced."""
    codecs.register_error(ERRORS, _stand_in)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and not codecs.lookup(stream.encoding).name.startswith("utf"):
            stream.reconfigure(errors=ERRORS)
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")


def is_dumb(stream: TextIO) -> bool:
    """Whether escape sequences would be garbage on it: a file, a pipe, a terminal that knows none."""
    return not stream.isatty() or os.environ.get("TERM", "") in DUMB


def has_colours(stream: TextIO) -> bool:
    """NO_COLOR (https://no-color.org) and the terminal's own description decide."""
    return not (is_dumb(stream) or os.environ.get("NO_COLOR")) and _colours_of(stream) != 0


def _colours_of(stream: TextIO) -> int | None:
    """As many as terminfo says; None for a terminal that it does not know."""
    try:
        import curses

        curses.setupterm(fd=stream.fileno())
        return max(0, curses.tigetnum("colors"))
    except (ImportError, OSError, curses.error):
        return None


def _stand_in(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(map(_ascii, error.object[error.start : error.end])), error.end


def _ascii(character: str) -> str:
    if character.isascii() or unicodedata.combining(character):
        return character if character.isascii() else ""
    is_wide = unicodedata.east_asian_width(character) in {"W", "F"}
    return STAND_INS.get(character, "??" if is_wide else "?")
