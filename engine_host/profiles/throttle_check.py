"""What keys of `[throttle]` make of each other: contradictions, and names of classes that there are not.

API keys are secrets: no message here names one.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from engine_host.nearest import suggestion
from engine_host.profiles.throttle_table import Auto, Throttle

CLASS_CHARS = 32
"""A class is a word in a table of an 80-column terminal, and in a header."""

NO_CLASS = "none"
"""Where a class is named on a command line: no limit."""

_CLASS_NAME = re.compile(r"[A-Za-z0-9_.-]+")
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,64}")
_DIGEST = re.compile(r"sha256:[0-9a-fA-F]{64}")
_WATCHED = ("kv_enter", "waiting_enter", "preemptions_enter", "ttft_p95_enter_s")


@dataclass(frozen=True)
class Contradiction:
    key: str
    """Dotted, without `throttle.`."""
    fact: str
    """What follows the key."""
    remedy: str


def contradictions(table: Throttle, given: Collection[str] | None = None) -> Iterator[Contradiction]:
    """Of a table whose keys are sound by themselves. `given`: the dotted keys that somebody wrote, where that is known;
    the others stand at their defaults."""
    yield from _classes(table)
    yield from _bursts(table)
    if table.class_header is not None and not _HEADER.fullmatch(table.class_header):
        yield Contradiction(
            "class_header",
            f"{table.class_header[:60]!r} is no name of an HTTP header",
            'write: class_header = "x-priority"',
        )
    yield from _thresholds(table.auto, given)
    lowest, cap = table.auto.min_inflight, table.max_inflight
    if cap is not None and lowest > cap:
        yield Contradiction(
            "auto.min_inflight", f"{lowest} is above throttle.max_inflight = {cap}", f"give at most {cap}"
        )
    if len(set(table.auto.dials)) < len(table.auto.dials):
        yield Contradiction("auto.dials", f"{table.auto.dials} names one twice", "name each dial once")


def _classes(table: Throttle) -> Iterator[Contradiction]:
    names = table.classes
    for name in names:
        if name.lower() == NO_CLASS:
            yield Contradiction(
                "classes", f"{name!r} stands for no limit in min_class", "call the class something else"
            )
        elif not _CLASS_NAME.fullmatch(name) or len(name) > CLASS_CHARS:
            yield Contradiction(
                "classes",
                f"{name[:60]!r} is no name of a class",
                f"use letters, digits, dot, dash and underscore, at most {CLASS_CHARS} of them",
            )
    if not names:
        yield Contradiction("classes", "[] leaves no class", 'leave it out, or write: classes = ["low", "high"]')
    if len({name.lower() for name in names}) < len(names):
        yield Contradiction(
            "classes",
            f"{names} names one twice: capitals count for nothing in a header",
            "name each class once, lowest first",
        )
    for key in ("default_class", "min_class"):
        name = getattr(table, key)
        if name is not None and name not in names:
            yield Contradiction(
                key, f"{name[:60]!r} is not in throttle.classes", suggestion(name, names, in_order=True)
            )
    for at, (api_key, name) in enumerate(table.api_key_classes.items(), 1):
        if name not in names:
            yield Contradiction(
                "api_key_classes",
                f"entry {at} is {name[:60]!r}, which is not in classes",
                suggestion(name, names, in_order=True),
            )
        if not api_key.strip() or (api_key.startswith("sha256:") and not _DIGEST.fullmatch(api_key)):
            yield Contradiction(
                "api_key_classes",
                f"entry {at} is neither an API key nor sha256: and 64 hex digits",
                "write the key, or sha256: and what `printf %s KEY | sha256sum` prints",
            )


def _bursts(table: Throttle) -> Iterator[Contradiction]:
    for burst, rate in BURSTS.items():
        if getattr(table, burst) is not None and getattr(table, rate) is None:
            yield Contradiction(
                burst, f"{getattr(table, burst)} limits nothing without {rate}", f"add {rate}, or remove {burst}"
            )


BURSTS = {"request_burst": "request_rate", "prompt_token_burst": "prompt_token_rate"}
"""A burst, and the rate without which it means nothing."""


def _thresholds(auto: Auto, given: Collection[str] | None) -> Iterator[Contradiction]:
    def is_default(name: str) -> bool:
        return given is not None and f"auto.{name}" not in given

    for enter in _WATCHED:
        leave = enter.replace("_enter", "_leave")
        high, low = getattr(auto, enter), getattr(auto, leave)
        if high is not None and low is not None and low >= high and not low == high == 0:
            yield Contradiction(
                f"auto.{leave}",
                f"{low:g}{', its default,' if is_default(leave) else ''} is not below auto.{enter} = {high:g}"
                f"{', its default' if is_default(enter) else ''}: the cap would come down and rise at once",
                f"{'add it with' if is_default(leave) else 'give'} less than {high:g}",
            )
        if high is None and low is not None:
            yield Contradiction(f"auto.{leave}", f"{low:g} has no auto.{enter}", f"add auto.{enter}, or remove it")
        if high is not None and low is None:
            yield Contradiction(
                f"auto.{enter}",
                f"{high:g} has no auto.{leave}: nothing says when the cap may rise again",
                f"add auto.{leave}, below {high:g}",
            )
