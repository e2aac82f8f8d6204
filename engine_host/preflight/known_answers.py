"""Answers that earlier checks got from other processes, so that the same question starts none again.

Importing vLLM takes 5 s of CPU, 20 s and more beside an engine that needs the cores, and a switch back and forth asks
the same every time. Only answers that last are kept: what went wrong may heal, and what must be measured is not asked
here. Kept in the state directory as well, for the host's next life.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TypeVar

import msgspec

from .off_loop import off_loop

ANSWERS_FILE = "preflight-answers.json"
"""In the state directory."""

FORMAT = 1
"""Raised when the meaning of what is kept changes; a file of another format is forgotten."""

KEPT = 128
"""Answers kept, those used last: a profile has two, and a node knows a dozen profiles."""

MAX_BYTES = 4 << 20
"""A larger file is not ours: an answer has a kilobyte."""

T = TypeVar("T", bound=msgspec.Struct)


class _File(msgspec.Struct, frozen=True):
    format: int
    answers: dict[str, msgspec.Raw]


class KnownAnswers:
    """`path`: where they are kept over the host's lives; None: nowhere. `environment`: what the processes get that are
    asked, and part of what answers depend on; default: that of this process now, before vLLM changes it.

    Safe to use from any thread. A file that cannot be read or written costs time and nothing else.
    """

    def __init__(self, path: Path | None = None, environment: Mapping[str, str] | None = None) -> None:
        self.environment: Mapping[str, str] = dict(os.environ) if environment is None else environment
        self._path = path
        self._lock = threading.Lock()
        self._answers = OrderedDict(_read(path)) if path is not None else OrderedDict[str, bytes]()

    def get(self, key: str | None, kind: type[T]) -> T | None:
        with self._lock:
            encoded = self._answers.get(key) if key is not None else None
            if key is None or encoded is None:
                return None
            self._answers.move_to_end(key)
        try:
            return msgspec.json.decode(encoded, type=kind)
        except msgspec.MsgspecError:
            return None

    def keep(self, key: str, answer: msgspec.Struct) -> None:
        encoded = msgspec.json.encode(answer)
        with self._lock:
            if self._answers.get(key) == encoded:
                return
            self._answers[key] = encoded
            self._answers.move_to_end(key)
            while len(self._answers) > KEPT:
                self._answers.popitem(last=False)
            self._write()

    async def ask_once(
        self,
        key_now: Callable[[], str | None],
        kind: type[T],
        ask: Callable[[], Awaitable[T]],
        *,
        lasts: Callable[[T], bool],
    ) -> T:
        """The known answer, or that of `ask`, which is kept when it `lasts`. `key_now` gives the question's key, None
        for one that must be asked every time; when it gives another one afterwards, a file changed in between and
        nobody knows which one was read."""
        key = await off_loop(key_now)
        if (known := self.get(key, kind)) is not None:
            return known
        answer = await ask()
        if key is not None and lasts(answer) and await off_loop(key_now) == key:
            await off_loop(self.keep, key, answer)
        return answer

    def _write(self) -> None:
        if self._path is None:
            return
        content = _File(FORMAT, {key: msgspec.Raw(encoded) for key, encoded in self._answers.items()})
        with contextlib.suppress(OSError):
            part = self._path.with_suffix(".part")
            part.write_bytes(msgspec.json.encode(content))
            part.replace(self._path)


def _read(path: Path) -> dict[str, bytes]:
    try:
        if path.stat().st_size > MAX_BYTES:
            return {}
        content = msgspec.json.decode(path.read_bytes(), type=_File)
    except (OSError, msgspec.MsgspecError):
        return {}
    kept = list(content.answers.items())[-KEPT:] if content.format == FORMAT else []
    return {key: bytes(raw) for key, raw in kept}
