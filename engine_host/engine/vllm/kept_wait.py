"""How long a carried request has waited: what it waited in the engine that it began with.

vLLM sets the moment of queueing anew with every engine core, and leaves that of the first step as it was: of a request
that has begun, its queue time in `/metrics` would be below zero.
"""

from __future__ import annotations

import contextlib
import time
from functools import cache
from typing import Any


def keep_wait(stats: Any) -> None:
    """Of a request's `RequestStateStats`, before another engine core gets the request; None where vLLM keeps none."""
    if stats is None:
        return
    with contextlib.suppress(AttributeError, TypeError):  # kept otherwise by some release: no reason to fail a switch
        # vLLM tells of the queueing with the first token. Until then it is the arrival, by the clock of engine cores.
        stats.queued_ts = stats.queued_ts or time.monotonic() - (time.time() - stats.arrival_time)
        stats.__class__ = _kept(stats.__class__)


@cache
def _kept(kind: Any) -> Any:
    """The same, but that the moment of queueing stays. Of one that is kept already: itself."""
    if getattr(kind, "keeps_wait", False):
        return kind

    def keep(self: Any, name: str, value: Any) -> None:
        if name != "queued_ts":
            object.__setattr__(self, name, value)

    return type(kind.__name__, (kind,), {"__setattr__": keep, "keeps_wait": True})
