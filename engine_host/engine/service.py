"""The engine that serves, the profile that it serves, and the entry that hands it requests."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable

from engine_host.engine.dials import Dials
from engine_host.engine.port import Engine
from engine_host.gateway.entry import Entry
from engine_host.profiles import Profile
from engine_host.throttle.throttle import Throttle

_LAST_ANSWERS_S = 1.0
"""What clients get to take the end of the answers that the engine could not finish."""


class Service:
    """Changed by the lifecycle alone; `on_serving` is called when another engine serves, `on_gone` when none does."""

    def __init__(
        self,
        profile: Profile,
        entry: Entry,
        dials: Dials,
        throttle: Throttle,
        on_serving: Callable[[], None],
        on_gone: Callable[[], None],
    ) -> None:
        self.profile = profile
        """What serves, or is to serve."""
        self.entry = entry
        self.dials = dials
        self.throttle = throttle
        self.engine: Engine | None = None
        """The engine that serves, if one does."""
        self._since: float | None = None
        self._on_serving = on_serving
        self._on_gone = on_gone
        self._retiring: set[asyncio.Task[None]] = set()

    @property
    def uptime_s(self) -> float | None:
        return None if self._since is None else time.monotonic() - self._since

    def install(self, engine: Engine, profile: Profile) -> list[str]:
        """It serves from now on, or goes on serving under another profile. Returns what becomes of the limits, as
        `Throttle.attach`."""
        if engine is not self.engine:
            self._since = time.monotonic()
            self._on_serving()
        self.dials.attach(engine, profile)
        limits = self.throttle.attach(profile)
        self.engine, self.profile = engine, profile
        self.entry.attach(engine.app)
        return limits

    def uninstall(self) -> None:
        """No engine serves now; whoever took it out ends it."""
        self.engine = self._since = None
        self.dials.detach()
        self._on_gone()

    async def discard(self, timeout_s: float) -> None:
        """End the engine, if there is one, and everything it started."""
        engine, self.engine, self._since = self.engine, None, None
        self.dials.detach()
        if engine is not None:
            app = engine.app
            await engine.stop(timeout_s, keep_app=True)
            self._on_gone()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.entry.wait_left(app), _LAST_ANSWERS_S)
            await engine.close_app()

    def retire(self, engine: Engine) -> None:
        """Its app still writes the answers that were under way; it is closed after the last of them."""
        task = asyncio.create_task(self._close_when_idle(engine), name="retire-app")
        self._retiring.add(task)
        task.add_done_callback(self._retiring.discard)

    async def _close_when_idle(self, engine: Engine) -> None:
        await self.entry.wait_left(engine.app)
        await engine.close_app()
