"""Repeats the engine's log on the terminal where the host was started, without ever waiting for that terminal.

A terminal stops reading when somebody presses ctrl-S, a connection hangs or a pager is left open. Its write blocks
then, whatever `poll` said before, and the descriptor cannot be made non-blocking, because the shell has the same one.
So a thread of its own writes; what it holds is bounded, and what is left out is counted and told.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from pathlib import Path

HELD_BYTES = 256 * 1024
"""Held for a terminal that is slow; an engine's start prints about 50 kB."""


class Echo:
    """Owns `descriptor` from now on; `log` is where the lines left out can be read."""

    def __init__(self, descriptor: int, log: Path, held_bytes: int = HELD_BYTES) -> None:
        self._descriptor = descriptor
        self._log = log
        self._limit = held_bytes
        self._chunks: deque[bytes] = deque()
        self._held = 0
        self._left_out = 0
        self._is_closing = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._write_on, name="engine-log-echo", daemon=True)
        self._thread.start()

    def write(self, data: bytes) -> None:
        """Have `data` repeated, or left out while the terminal is behind. Returns at once."""
        with self._changed:
            # Once something is left out, so is all until the terminal has caught up: the count stands in its place.
            if self._left_out or self._held + len(data) > self._limit:
                self._left_out += max(1, data.count(b"\n"))
            else:
                self._chunks.append(data)
                self._held += len(data)
            self._changed.notify()

    def close(self, deadline_s: float) -> bool:
        """Take no more; true when everything held was written within the deadline.

        If not, the thread stays where it is, in a write that nobody can interrupt, and keeps the descriptor: closed
        under it, its number could become another file's.
        """
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        self._thread.join(deadline_s)
        return not self._thread.is_alive()

    def _write_on(self) -> None:
        with contextlib.suppress(OSError):  # the terminal is gone: nobody is there to be told
            while data := self._next():
                view = memoryview(data)
                while view:
                    view = view[os.write(self._descriptor, view) :]
                with self._changed:
                    self._held = max(0, self._held - len(data))
        with self._changed:
            self._limit = -1  # from here on everything is left out
            os.close(self._descriptor)

    def _next(self) -> bytes:
        """The next thing to write, waiting for it; empty when there is none and none will come."""
        with self._changed:
            while not (self._chunks or self._left_out or self._is_closing):
                self._changed.wait()
            if self._chunks:
                return self._chunks.popleft()
            count, self._left_out = self._left_out, 0
            return f"\n… {count:,} lines not repeated here, see {self._log}\n".encode() if count else b""
