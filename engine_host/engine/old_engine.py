"""The engine that a switch replaces: its death meanwhile is told at once, and requests wait for the next engine.

The lifecycle, which looks after an engine that serves, is busy with the switch.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

from engine_host.engine.carriage import Carriage
from engine_host.engine.deck import Deck
from engine_host.engine.port import Engine
from engine_host.profiles import Profile


class OldEngine:
    """Used once, by one switch; `to` is the profile that it switches to."""

    def __init__(self, deck: Deck, requests: Carriage, to: Profile) -> None:
        self._deck = deck
        self._requests = requests
        self._to = to
        self._watching: asyncio.Task[None] | None = None
        self.death: str | None = None
        """Why it has died, in words; None while it lives, and when it lived until it handed over."""

    @contextlib.contextmanager
    def watched(self, engine: Engine | None) -> Iterator[None]:
        """Look out for its death until `handed_over`; None: there is no engine."""
        if engine is not None:
            self._watching = asyncio.create_task(self._watch(engine), name="old-engine")
        try:
            yield
        finally:
            if self._watching is not None:
                self._watching.cancel()

    async def handed_over(self, engine: Engine) -> None:
        """Its end is no longer news. Returns when its death, if it has died before, is told: only until it is stopped
        can it be asked for the reason."""
        if self._watching is None:
            return
        if engine.is_dead:
            await self._watching
        self._watching.cancel()

    async def _watch(self, engine: Engine) -> None:
        watch = self._deck.death_watch(engine)
        await watch.until_death()
        self._requests.hold()
        failure = await watch.failure()
        self.death = failure.reason
        self._deck.lost(failure, self._to)
