"""Waiting for the death of an engine, and finding its reason.

A death is explained by what was logged shortly before it: the log of a long life holds errors of rejected requests
that killed nothing.
"""

from __future__ import annotations

import asyncio
import time

from engine_host.engine import last_words
from engine_host.engine.last_words import EngineLog
from engine_host.engine.port import Engine
from engine_host.protocol.snapshot import Failure

POLL_S = 0.1
"""How often the engine is to be asked whether it lives: its death is promised to be known within a second."""
_LOG_WINDOW_S = 2.0
"""The last one or two of these explain a death."""


class DeathWatch:
    """Of one engine that serves; `log_mark`: where in the log its lines begin, as far as they matter."""

    def __init__(self, engine: Engine, log: EngineLog, log_mark: int) -> None:
        self._engine = engine
        self._log = log
        self._older, self._newer, self._marked_at = log_mark, log.mark(), time.monotonic()

    def has_died(self) -> bool:
        """To be asked every `POLL_S`."""
        if self._engine.is_dead:
            return True
        if time.monotonic() - self._marked_at > _LOG_WINDOW_S:
            self._older, self._newer, self._marked_at = self._newer, self._log.mark(), time.monotonic()
        return False

    async def until_death(self) -> None:
        while not self.has_died():  # noqa: ASYNC110 - vLLM sets a flag and tells nobody
            await asyncio.sleep(POLL_S)

    async def failure(self) -> Failure:
        """Why it died; takes a moment, in which its last lines arrive."""
        return await last_words.of_death(self._engine, self._log, self._older)
