"""The engine's log: everything this process and its children print, in one file, and the last lines at hand.

vLLM's engine core is another process that writes to our standard output and error. Both are pointed at a file before
the engine starts: the file survives a crash, a terminal that stops reading cannot stall the engine, and what the
engine said last is there when it dies. A follower thread reads the file on, keeps its tail and repeats it on the
terminal where the host was started.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from engine_host.engine import file_blocks
from engine_host.engine.echo import Echo

TAIL_LINES = 400
"""Lines kept in memory: a vLLM start failure prints two nested tracebacks of about 100 lines each."""
MAX_BYTES = 64 << 20
"""The file is cut when it grows beyond this, one older copy kept: a host runs for months."""
_POLL_S = 0.1
"""How often the follower looks for new text."""
_READ_BYTES = 1 << 16
_PARTIAL_BYTES = 4096
"""Kept of a line that is not complete yet."""
_READ_OUT_S = 1.0
"""At the end: what reading the rest may take."""
_ECHO_OUT_S = 1.0
"""At the end: what the terminal may take for the rest."""

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_PREFIX = re.compile(r"^\(\w+(?: \w+)* pid=\d+\)\s?")
_LEVEL = re.compile(r"^(DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d \[[^\]]*\]\s?")
_EXCEPTION = re.compile(r"^(?:[A-Za-z_][\w.]*\.)?[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Failure)\b")
_WRAPPER = re.compile(
    r"EngineDeadError|EngineCore encountered|root cause|Failed core proc|output_handler failed"
    r"|EngineCore failed to start|EngineCore encountered a fatal|resource_tracker|WorkerProc (?:failed|hit)"
)
"""vLLM's words for "something below me failed", which say nothing themselves."""
_FRAME = re.compile(r"^(?:\s|Traceback \(most|During handling|The above exception|\^+)")
"""Stack frames and what ties them together; frames are indented."""


def plain(line: str) -> str:
    """A log line without colours, process prefix and vLLM's level-and-time column; indentation stays."""
    return _split(line)[1]


def _split(line: str) -> tuple[str | None, str]:
    """`(level or None, text)`."""
    line = _PREFIX.sub("", _ANSI.sub("", line).rstrip())
    level = _LEVEL.match(line)
    return (level[1], line[level.end() :]) if level else (None, line)


def error_lines(lines: Sequence[str], limit: int = 12) -> list[str]:
    """The lines that say why an engine failed, oldest first: exception messages and error records, each once, stack
    frames and vLLM's wrappers left out. None when it printed no error."""
    chosen: list[str] = []
    for line in lines:
        level, text = _split(line)
        if not text.strip() or _FRAME.match(text) or _WRAPPER.search(text) or text in chosen:
            continue
        if level in ("ERROR", "CRITICAL") or _EXCEPTION.match(text):
            chosen.append(text.strip())
    return chosen[-limit:]


def last_lines(lines: Sequence[str], limit: int = 12) -> list[str]:
    """What it printed last, whatever that was, oldest first."""
    return [text for line in lines if (text := plain(line).strip())][-limit:]


def root_reason(lines: Sequence[str]) -> str | None:
    """The first exception message among `lines`: vLLM prints the cause first and its wrappers after it."""
    for line in lines:
        text = plain(line)
        if _EXCEPTION.match(text) and not _WRAPPER.search(text):
            return text.strip()
    return None


def _flush() -> None:
    """What Python still holds goes where it was meant to go."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):
            stream.flush()


class LogFile:
    """Redirects this process's output into `path` and follows it, from `start` to `stop`.

    `on_line` is called from the follower thread for every complete line. `max_bytes`: see `MAX_BYTES`.
    """

    def __init__(self, path: Path, on_line: Callable[[str], None] | None = None, *, max_bytes: int = MAX_BYTES) -> None:
        self.path = path
        self._on_line = on_line
        self._max_bytes = max_bytes
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._seen = 0
        self._partial = b""
        """The line that is not complete yet; the follower's, like its position."""
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._saved: tuple[int, int] | None = None

    def start(self) -> None:
        """Point file descriptors 1 and 2 at the file. The terminal they had keeps getting a copy."""
        if self.path.exists() and self.path.stat().st_size > self._max_bytes // 2:
            self.path.replace(self._older)
        file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        begin = os.fstat(file).st_size
        _flush()
        self._saved = (os.dup(1), os.dup(2))
        echo = Echo(os.dup(2), self.path)
        os.dup2(file, 1)
        os.dup2(file, 2)
        self._thread = threading.Thread(target=self._follow, args=(file, begin, echo), name="engine-log", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Give standard output and error back; what was printed until now is read, and echoed as far as the terminal
        takes it. Returns within `_READ_OUT_S + _ECHO_OUT_S`; does nothing when not started, or a second time."""
        if self._saved is None or self._thread is None:
            return
        _flush()
        os.dup2(self._saved[0], 1)
        os.dup2(self._saved[1], 2)
        for descriptor in self._saved:
            os.close(descriptor)
        self._saved = None
        self._stopping.set()
        self._thread.join(_READ_OUT_S + _ECHO_OUT_S)

    def mark(self) -> int:
        """A position in the log; `since` returns the lines after it."""
        return self._seen

    def since(self, mark: int) -> list[str]:
        """Lines printed after `mark`, as far as they are still kept."""
        lines, seen = list(self._tail), self._seen
        return lines[max(0, len(lines) - (seen - mark)) :] if seen > mark else []

    def errors_since(self, mark: int) -> tuple[str | None, list[str]]:
        """`(root reason or None, error lines)` of what was printed after `mark`."""
        lines = self.since(mark)
        return root_reason(lines), error_lines(lines)

    def last_since(self, mark: int) -> list[str]:
        """The last lines printed after `mark`, errors or not."""
        return last_lines(self.since(mark))

    @property
    def _older(self) -> Path:
        return self.path.with_suffix(".log.1")

    def _follow(self, file: int, begin: int, echo: Echo) -> None:
        """In the follower's thread, which owns `file` and `echo`.

        Read and cut through `file`, never through the path: an operator may move or remove the file meanwhile.
        """
        position = begin
        end, deadline = None, math.inf
        while True:
            if end is None and self._stopping.is_set():
                # What stands there now is read to its last byte, however much more is printed meanwhile.
                end, deadline = os.fstat(file).st_size, time.monotonic() + _READ_OUT_S
            data = os.pread(file, _READ_BYTES, position)
            position += len(data)
            self._take_in(data, echo)
            if end is not None and (not data or position >= end or time.monotonic() >= deadline):
                break
            if not data:
                if position > self._max_bytes:
                    position = self._cut(file, position, echo)
                if os.fstat(file).st_size < position:  # by somebody at a shell
                    position = 0
                self._stopping.wait(_POLL_S)
        self._take(self._partial.decode(errors="replace"))
        os.close(file)
        echo.close(_ECHO_OUT_S)

    def _take_in(self, data: bytes, echo: Echo) -> None:
        if not data:
            return
        echo.write(data)
        *lines, partial = (self._partial + data).replace(b"\r", b"\n").split(b"\n")
        for line in lines:
            self._take(line.decode(errors="replace"))
        self._partial = partial[-_PARTIAL_BYTES:]

    def _take(self, line: str) -> None:
        if not line.strip():
            return
        self._tail.append(line)
        self._seen += 1
        if self._on_line is not None:
            self._on_line(line)

    def _cut(self, file: int, position: int, echo: Echo) -> int:
        """Put aside what has been read, as the older copy, and take it out of the file. Returns where to read on.

        The children hold the same file open for appending, so it cannot be renamed away. The two copies follow each
        other without a gap; the cut is in the middle of a line.
        """
        read = file_blocks.whole_blocks(file, position)
        if not read:
            return position
        with contextlib.suppress(OSError), self._older.open("wb") as older:
            at = max(0, read - self._max_bytes)
            while block := os.pread(file, min(1 << 20, read - at), at):
                older.write(block)
                at += len(block)
        if file_blocks.take_out(file, read):
            return position - read
        rest = self._read_out_and_truncate(file, read)
        with contextlib.suppress(OSError), self._older.open("ab") as older:
            older.write(rest)
        self._take_in(rest[position - read :], echo)
        return 0

    @staticmethod
    def _read_out_and_truncate(file: int, at: int) -> bytes:
        """For a file system without a better way: what is printed between the last look and the cut is lost, so nothing
        is done between the two."""
        rest = bytearray()
        while block := os.pread(file, _READ_BYTES, at + len(rest)):
            rest += block
        os.ftruncate(file, 0)
        return bytes(rest)
