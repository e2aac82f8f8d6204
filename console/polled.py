"""What a page asks the host for again and again while it is shown: the newest answer, and how old it is.

Too large or too costly for the snapshot, which everybody gets every second: the block map, the list of requests.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from console import format as fmt
from console.lines import Line, Tone, line
from console.model import STALE_AFTER_S, State, is_stale
from console.switch_panels import wrapped

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Polled(Generic[T]):
    answer: T | None = None
    """The newest; an older one stays when the newest question got none."""
    at: float = 0.0
    """Monotonic, of its arrival."""
    failure: str = ""
    """Why the newest question got no answer, in words."""


def age_s(polled: Polled[T], now: float) -> float:
    return max(0.0, now - polled.at)


def is_old(polled: Polled[T], state: State, now: float) -> bool:
    """The answer may no longer be true."""
    return is_stale(state, now) or (polled.answer is not None and age_s(polled, now) > STALE_AFTER_S)


def standing(polled: Polled[T], what: str, now: float) -> Line:
    """How fresh the answer is, for a heading; `what` with its article: "the map"."""
    if polled.answer is None:
        return line(("" if polled.failure else f"asking for {what} …", Tone.FAINT))
    old_s = age_s(polled, now)
    return line((f"▲ STALE: {what} is {fmt.duration(old_s)} old" if old_s > STALE_AFTER_S else "", Tone.WARN))


def no_answer(polled: Polled[T], width: int) -> list[Line]:
    """Why there is none, or none newer; empty while all is well."""
    parts = wrapped(polled.failure, width - 5) if polled.failure else []
    return [line(("  × " if i == 0 else "    ", Tone.WARN), part) for i, part in enumerate(parts)]
