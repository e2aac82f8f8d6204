"""The engine's log: everything this process and its children print, in one file, and the last lines at hand.

vLLM's engine core is another process that writes to our standard output and error. Both are pointed at a file before
the engine starts: the file survives a crash, a terminal that stops reading cannot stall the engine, and what the
engine said last is there when it dies. A follower thread reads the file on, keeps its tail and repeats it on the
terminal where the host was started.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

TAIL_LINES = 400
"""Lines kept in memory: a vLLM start failure prints two nested tracebacks of about 100 lines each."""
MAX_BYTES = 64 << 20
"""The file is cut when it grows beyond this, one older copy kept: a host runs for months."""
_POLL_S = 0.1
"""How often the follower looks for new text."""

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
    frames and vLLM's wrappers left out. Without any, the last lines as they are."""
    chosen: list[str] = []
    for line in lines:
        level, text = _split(line)
        if not text.strip() or _FRAME.match(text) or _WRAPPER.search(text) or text in chosen:
            continue
        if level in ("ERROR", "CRITICAL") or _EXCEPTION.match(text):
            chosen.append(text.strip())
    return chosen[-limit:] or [text for line in lines if (text := plain(line).strip())][-limit:]


def root_reason(lines: Sequence[str]) -> str | None:
    """The first exception message among `lines`: vLLM prints the cause first and its wrappers after it."""
    for line in lines:
        text = plain(line)
        if _EXCEPTION.match(text) and not _WRAPPER.search(text):
            return text.strip()
    return None


class LogFile:
    """Redirects this process's output into `path` and follows it.

    `on_line` is called from the follower thread for every complete line.
    """

    def __init__(self, path: Path, on_line: Callable[[str], None] | None = None) -> None:
        self.path = path
        self._on_line = on_line
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._seen = 0
        self._stopping = threading.Event()
        self._offset = 0
        self._thread = threading.Thread(target=self._follow, name="engine-log", daemon=True)
        self._echo_fd: int | None = None
        self._saved: tuple[int, int] | None = None

    def start(self) -> None:
        """Point file descriptors 1 and 2 at the file. The terminal they had keeps getting a copy."""
        if self.path.exists() and self.path.stat().st_size > MAX_BYTES // 2:
            self.path.replace(self.path.with_suffix(".log.1"))
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._offset = os.fstat(descriptor).st_size
        self._saved = (os.dup(1), os.dup(2))
        self._echo_fd = self._saved[1]
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        os.close(descriptor)
        self._thread.start()

    def stop(self) -> None:
        """Give standard output and error back; what was printed until now is echoed first."""
        if self._saved is None:
            return
        self._stopping.set()
        self._thread.join(timeout=2)
        os.dup2(self._saved[0], 1)
        os.dup2(self._saved[1], 2)
        for descriptor in self._saved:
            os.close(descriptor)
        self._saved = None

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

    def _follow(self) -> None:
        with self.path.open("rb") as stream:
            stream.seek(self._offset)
            partial = b""
            while True:
                stopping = self._stopping.is_set()
                data = stream.read(1 << 16)
                if data:
                    self._echo(data)
                    *lines, partial = (partial + data).replace(b"\r", b"\n").split(b"\n")
                    for line in lines:
                        self._take(line.decode(errors="replace"))
                    partial = partial[-4096:]
                    continue
                if stopping:
                    return
                if stream.tell() > MAX_BYTES:
                    self._cut(stream.tell())
                    stream.seek(0)
                self._stopping.wait(_POLL_S)

    def _take(self, line: str) -> None:
        if not line.strip():
            return
        self._tail.append(line)
        self._seen += 1
        if self._on_line is not None:
            self._on_line(line)

    def _echo(self, data: bytes) -> None:
        """Repeat on the terminal; one that is gone is forgotten."""
        if self._echo_fd is None:
            return
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(self._echo_fd, view) :]
        except OSError:
            self._echo_fd = None

    def _cut(self, size: int) -> None:
        """Copy-and-truncate: the children hold the same file open for appending, so it cannot be renamed away."""
        older = self.path.with_suffix(".log.1")
        with contextlib.suppress(OSError), self.path.open("rb") as source, older.open("wb") as target:
            source.seek(max(0, size - MAX_BYTES))
            while block := source.read(1 << 20):
                target.write(block)
        with contextlib.suppress(OSError):
            os.truncate(self.path, 0)
