"""How long each profile took to start, kept over runs of the host, for the forecast of the next start.

Starts differ: the first one reads the weights from a cold disk and compiles. So the forecast is the median of the last
few, and one slow start does not skew it.

A forecast is a convenience: a file that cannot be read or written costs the forecast and nothing else.
"""

from __future__ import annotations

import contextlib
import json
import math
import statistics
from pathlib import Path

START_TIMES_FILE = "start-times.json"
"""In the state directory."""

KEPT = 100
"""Profiles remembered; those started last."""

STARTS = 5
"""Remembered of each."""


class StartTimes:
    """The times in the file at `path`; a profile is named by its digest, since a changed one starts anew."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def expected_s(self, digest: str) -> float | None:
        """The median; of an even number the lower one, since starts are slow by accident and never fast."""
        took_s = self._read().get(digest)
        return statistics.median_low(took_s) if took_s else None

    def remember(self, digest: str, took_s: float) -> None:
        times = self._read()
        # Taken out and put back, so that it becomes the last.
        times[digest] = [*times.pop(digest, []), round(took_s, 1)][-STARTS:]
        newest = dict(list(times.items())[-KEPT:])
        with contextlib.suppress(OSError):
            part = self._path.with_suffix(".part")
            part.write_text(json.dumps(newest))
            part.replace(self._path)

    def _read(self) -> dict[str, list[float]]:
        """By digest, oldest first. A single number was written by an earlier release."""
        try:
            content = json.loads(self._path.read_text())
        except (OSError, ValueError, RecursionError):
            return {}
        if not isinstance(content, dict):
            return {}
        lists = {key: value if isinstance(value, list) else [value] for key, value in content.items()}
        return {key: [float(time) for time in times if _is_time(time)] for key, times in lists.items()}


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0
