"""One step that takes a while, shown while it runs: what it is doing now and for how long.

On a terminal that is a single live line; into a file or a CI log it is a plain line at the start and then every ten
seconds, so that a step which hangs is told from one which works. Standard library only, and importable by any
Python 3.8: `install` uses it before anything is installed.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
import threading
import time
from types import TracebackType
from typing import Callable, TextIO  # noqa: UP035  (subscripted at run time, which 3.8 only allows here)

PLAIN_INTERVAL_S = 10.0
"""Between two lines where there is no terminal: often enough for a CI watchdog, rare enough to read."""

FRAME_S = 0.12
"""Between two frames of the live line; slow enough for a bad link (about 600 bytes/s)."""

QUIET_S = 0.4
"""A step done within this shows no live line at all: a flicker tells nobody anything."""

SPINNER = "|/-\\"


class Step:
    """A titled step, used as a context manager; `phase` may be called from any thread.

    >>> with Step("install") as step:
    ...     step.phase("downloading torch")

    The closing line is printed only when the step ends without an exception: the failure has its own words.
    """

    def __init__(self, title: str, stream: TextIO | None = None, *, plain_interval_s: float = PLAIN_INTERVAL_S) -> None:
        self.title = title
        self._stream = sys.stderr if stream is None else stream
        self._is_live = self._stream.isatty()
        self._plain_interval_s = plain_interval_s
        self._phase: str | Callable[[], str] = ""
        self._done_text = ""
        self._started_at = time.monotonic()
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._has_line = False
        self._ticker = threading.Thread(target=self._tick, name=f"progress {title}", daemon=True)

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._started_at

    def phase(self, text: str | Callable[[], str]) -> None:
        """What is being done now, in a few words; a function is asked anew each time the line is shown."""
        self._phase = text

    def done(self, text: str) -> None:
        """What to say at the end instead of "done"."""
        self._done_text = text

    def __enter__(self) -> Step:
        self._started_at = time.monotonic()
        self._ticker.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._ticker.join()
        self._clear()
        if kind is None:
            self._print(f"{self.title}: {self._done_text or 'done'} ({self.elapsed_s:.1f} s)\n")

    def _tick(self) -> None:
        if self._is_live:
            self._stop.wait(QUIET_S)
            frame = 0
            while not self._stop.wait(FRAME_S):
                frame += 1
                self._draw(SPINNER[frame % len(SPINNER)])
            return
        while not self._stop.wait(self._plain_interval_s):
            self._print(f"{self._text()}\n")

    def _text(self) -> str:
        phase = self._phase
        if not isinstance(phase, str):
            try:
                phase = phase()
            except OSError:  # it looks at files that another process is moving
                phase = ""
        return f"{self.title}{': ' if phase else ''}{phase} ({self.elapsed_s:.0f} s)"

    def _draw(self, spinner: str) -> None:
        width = shutil.get_terminal_size().columns - 1
        line = f"{spinner} {self._text()}"[:width]
        self._print(f"\r\x1b[K{line}")
        self._has_line = True

    def _clear(self) -> None:
        if self._has_line:
            self._print("\r\x1b[K")
            self._has_line = False

    def _print(self, text: str) -> None:
        # A closed terminal must not keep the step, or the cleaning up after it, from going on.
        with self._lock, contextlib.suppress(OSError, ValueError):
            self._stream.write(text)
            self._stream.flush()
