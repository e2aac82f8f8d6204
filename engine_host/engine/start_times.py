"""How long each profile took to start, kept over runs of the host, for the forecast of the next start.

A forecast is a convenience: a file that cannot be read or written costs the forecast and nothing else.
"""

from __future__ import annotations

import contextlib
import json
import math
from pathlib import Path

START_TIMES_FILE = "start-times.json"
"""In the state directory."""

KEPT = 100
"""Profiles remembered; those started last."""


class StartTimes:
    """The times in the file at `path`; a profile is named by its digest, since a changed one starts anew."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def expected_s(self, digest: str) -> float | None:
        return self._read().get(digest)

    def remember(self, digest: str, took_s: float) -> None:
        times = self._read()
        times.pop(digest, None)  # so that it becomes the last
        times[digest] = round(took_s, 1)
        newest = dict(list(times.items())[-KEPT:])
        with contextlib.suppress(OSError):
            part = self._path.with_suffix(".part")
            part.write_text(json.dumps(newest))
            part.replace(self._path)

    def _read(self) -> dict[str, float]:
        try:
            content = json.loads(self._path.read_text())
        except (OSError, ValueError, RecursionError):
            return {}
        if not isinstance(content, dict):
            return {}
        return {key: float(value) for key, value in content.items() if _is_time(value)}


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0
