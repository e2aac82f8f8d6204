"""The gate in front of vLLM's app: who goes in now, who waits, who is turned away."""

from __future__ import annotations

import time
from collections.abc import Callable

from engine_host.engine.port import AsgiApp, Receive, Scope
from engine_host.gateway.asked import Asked, Prepare
from engine_host.gateway.refusals import Refusal
from engine_host.gateway.unavailable import Unavailable
from engine_host.profiles.throttle_table import Throttle
from engine_host.protocol.throttling import GateCounts
from engine_host.throttle.limits import Limits


class Passage:
    """The place of one admitted request; to be left when its response is done."""

    receive: Receive

    def app(self, serving: AsgiApp) -> AsgiApp:
        """What answers the request while `serving` is vLLM's app."""
        raise NotImplementedError

    def leave(self) -> None:
        raise NotImplementedError


class Gate:
    """On the event loop, like all that uses it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.prepare: Prepare = unprepared
        """What is done with a request before it waits; set once, by the composition root."""
        self.limits = Limits()
        self.classes = Throttle()
        self.inflight = 0
        """Choices that were let in and have not ended."""
        self.held = 0

    def apply(self, limits: Limits) -> None:
        """Put `limits` in force: what they now let in goes at once, what is in flight goes on."""
        self.limits = limits

    def set_classes(self, table: Throttle) -> None:
        """The priority classes of `table`, and how a request comes by one."""
        self.classes = table

    def open(self, app: AsgiApp) -> None:
        """`app` serves."""

    def close(self, why: Unavailable) -> None:
        """Nothing serves: who waits is told `why` at once, and whoever comes until `open`."""

    def counts(self) -> GateCounts:
        return GateCounts(inflight=self.inflight, held=self.held)

    async def enter(self, scope: Scope, receive: Receive) -> Passage | Refusal | Unavailable | None:
        """Wait for a place. None: the client has gone. Whoever gets a `Passage` has to leave it."""
        raise NotImplementedError


async def unprepared(app: AsgiApp, asked: Asked) -> Asked | Refusal:
    """Every request as it came."""
    return asked
