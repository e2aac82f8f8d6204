"""What the command line takes as values: numbers within bounds, spans of time, `NAME=VALUE`; else refused in words.

Light, as every start of the console reads it.
"""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable
from typing import Generic, TypeVar

_SPAN = re.compile(r"(\d+(?:\.\d+)?)(s|m|h|d)")
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}

T = TypeVar("T")

NONE = "none"
"""In place of a limit's value: no such limit."""

START = "start"
"""In place of a dial's value: back to what the engine was started with."""


class Number:
    """An argparse type: a finite number within bounds, refused with the bounds named."""

    def __init__(self, low: float, high: float) -> None:
        self._low, self._high = low, high

    def __call__(self, text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not self._low <= value <= self._high:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number from {self._low:g} to {self._high:g}")
        return value


class Whole:
    """An argparse type: a whole number within bounds."""

    def __init__(self, low: int, high: int | None) -> None:
        self._low, self._high = low, high

    def __call__(self, text: str) -> int:
        if not text.isascii() or not text.isdigit() or int(text) < self._low or int(text) > (self._high or int(text)):
            upper = f"to {self._high:,}" if self._high is not None else "upwards"
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {self._low} {upper}")
        return int(text)


class OrNone(Generic[T]):
    """An argparse type: what `kind` reads, or `none`."""

    def __init__(self, kind: Callable[[str], T]) -> None:
        self._kind = kind

    def __call__(self, text: str) -> T | None:
        if text.strip().lower() == NONE:
            return None
        try:
            return self._kind(text)
        except argparse.ArgumentTypeError as error:
            raise argparse.ArgumentTypeError(f"{error}, or {NONE}") from None


class Span:
    """An argparse type: seconds from `90s`, `10m`, `1h30m`, within bounds."""

    def __init__(self, low_s: float, high_s: float) -> None:
        self._low_s, self._high_s = low_s, high_s

    def __call__(self, text: str) -> float:
        seconds = span_s(text)
        if seconds is None:
            raise argparse.ArgumentTypeError(f"{text!r} is no span of time; write 90s, 10m or 1h")
        days = self._high_s / 86_400
        if not self._low_s <= seconds <= self._high_s:
            raise argparse.ArgumentTypeError(
                f"{text!r} is not from {self._low_s:g} s to {days:g} {'day' if days == 1 else 'days'}"
            )
        return seconds


def span_s(text: str) -> float | None:
    """Seconds that `90s`, `10m`, `1h30m` stand for; None for anything else."""
    written = text.strip().lower()
    parts = _SPAN.findall(written)
    if not parts or "".join(number + unit for number, unit in parts) != written:
        return None
    return sum(float(number) * _SECONDS[unit] for number, unit in parts)


def dial_value(text: str) -> tuple[str, int | None]:
    """An argparse type: `NAME=VALUE` or `NAME=start`, which is `(NAME, None)`."""
    name, equals, value = (part.strip() for part in text.partition("="))
    if value.lower() == START and name:
        return _dial_name(name), None
    try:
        if not name or not equals or not value.isascii():
            raise ValueError
        return _dial_name(name), int(value)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE with a whole number, or NAME={START}") from None


def seen_value(text: str) -> tuple[str, int]:
    """An argparse type: `NAME=VALUE`, the value that somebody saw."""
    name, value = dial_value(text)
    if value is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE with a whole number")
    return name, value


_LIMIT_NAMES = {"hold_deadline": "hold_deadline_s", "pause": "paused", "drain": "draining"}
"""As options call them, and as the host does."""


def limit_name(text: str) -> str:
    """An argparse type: a limit as the host names it, for one written as its option is."""
    name = _dial_name(text.strip().removeprefix("--"))
    return _LIMIT_NAMES.get(name, name)


def seen_limit(text: str) -> tuple[str, bool | int | float | str | None]:
    """An argparse type: `NAME=VALUE` of a limit that somebody saw; the host knows which values it takes."""
    name, equals, value = (part.strip() for part in text.partition("="))
    if not name or not equals or not value:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    words: dict[str, bool | None] = {NONE: None, "yes": True, "no": False, "true": True, "false": False}
    if value.lower() in words:
        return limit_name(name), words[value.lower()]
    if (seconds := span_s(value)) is not None:
        return limit_name(name), seconds
    for kind in (int, _finite):
        try:
            return limit_name(name), kind(value)
        except ValueError:
            continue
    return limit_name(name), value


def _finite(text: str) -> float:
    """JSON knows no others, and would send none in their place. Raises `ValueError`."""
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text)
    return value


def _dial_name(name: str) -> str:
    return name.replace("-", "_").lower()
