"""When those who are turned away are told to come back: seconds that count down, what is said where none are known."""

from __future__ import annotations

import math

LEAST_S = 1.0
"""`Retry-After` knows whole seconds only, and 0 would have everybody come back at once."""
UNKNOWN_S = 30.0
"""Told where nothing is known: about what an engine of usual size takes to start."""
MOST_UNKNOWN_S = 60.0
"""Where nothing is known, nobody should be kept away for long."""


def left_s(expected_s: float, elapsed_s: float, most_late_s: float | None = None) -> float:
    """Of what takes `expected_s` in all, as far as is known.

    Once that is over: as long again as it is late, up to `most_late_s`, else up to what it takes in all. What is late
    by much is rarely done within a second, and whoever comes back then has waited little longer than need be.
    """
    left = expected_s - elapsed_s
    return max(LEAST_S, left if left > 0 else min(-left, expected_s if most_late_s is None else most_late_s))


def where_unknown_s(hold_deadline_s: float) -> float:
    """For whom a limit keeps out of which nothing is known: as long as others wait for their turn, within a minute."""
    return min(max(LEAST_S, hold_deadline_s), MOST_UNKNOWN_S)


def whole_seconds(seconds: float) -> int:
    """As the header has it."""
    return math.ceil(max(LEAST_S, seconds))
