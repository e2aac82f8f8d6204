"""What a switch may do with the host.

It runs inside the lifecycle's own task, so that the host's state keeps one writer.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

from engine_host.engine.commands import Commands
from engine_host.engine.death_watch import DeathWatch
from engine_host.engine.host_state import HostState
from engine_host.engine.port import Engine, EngineStartError, StepStats
from engine_host.engine.recovery import Recovery
from engine_host.engine.service import Service
from engine_host.engine.starter import Starter
from engine_host.gateway.entry import Entry
from engine_host.gateway.unavailable import Unavailable
from engine_host.profiles import Profile
from engine_host.protocol.errors import OperatorError
from engine_host.protocol.snapshot import Failure, State

T = TypeVar("T")

_BUSY = "a switch is under way"


@contextlib.contextmanager
def _as_start_error() -> Iterator[None]:
    """A key that only vLLM itself found wrong. The former engine may be gone: this must lead back to it."""
    try:
        yield
    except OperatorError as error:
        raise EngineStartError(error.fact) from error


class Deck:
    """The lifecycle's parts, as far as a switch needs them."""

    def __init__(
        self, state: HostState, service: Service, starter: Starter, recovery: Recovery, commands: Commands
    ) -> None:
        self._state = state
        self._service = service
        self._starter = starter
        self._recovery = recovery
        self._commands = commands

    @property
    def entry(self) -> Entry:
        return self._service.entry

    @property
    def profile(self) -> Profile:
        """What serves, or is to serve."""
        return self._service.profile

    @property
    def engine(self) -> Engine | None:
        """The engine that serves, if one does."""
        return self._service.engine

    async def uninterrupted(self, work: Coroutine[Any, Any, T], cancel: asyncio.Event | None) -> T:
        """Await `work`; raises `Interrupted` when the host is to stop and `Cancelled` when `cancel` is set."""
        return await self._commands.uninterrupted(work, cancel, _BUSY)

    async def prepare(self, profile: Profile, cancel: asyncio.Event | None) -> Engine:
        """What of a start can be done while the other engine has the device, for `bring_up`; raises the same."""
        with _as_start_error():
            return await self._starter.prepare(profile, cancel, _BUSY)

    async def bring_up(self, profile: Profile, cancel: asyncio.Event | None, prepared: Engine | None = None) -> Engine:
        """Start an engine beside or after the other; raises `EngineStartError`, `Interrupted`, `Cancelled`."""
        with _as_start_error():
            return await self._starter.bring_up(profile, cancel, _BUSY, prepared)

    async def probe(self, engine: Engine, timeout_s: float, cancel: asyncio.Event | None) -> None:
        """The first token of an engine just brought up; raises the same, and then nothing is left of it."""
        await self._starter.probe(engine, timeout_s, cancel, _BUSY)

    async def explained(self, error: EngineStartError) -> EngineStartError:
        """The same error with the reason that the newest engine's log gives."""
        return await self._starter.explained(error)

    async def prepare_dials(self, engine: Engine, profile: Profile) -> None:
        """Have `engine`, which serves, go by the dials of `profile`. Raises as `Dials.prepare`."""
        await self._service.dials.prepare(engine, profile)

    def death_watch(self, engine: Engine) -> DeathWatch:
        """Of the engine that serves; see there."""
        return self._starter.death_watch(engine)

    def lost(self, failure: Failure, to: Profile) -> None:
        """The engine that serves has died, and the switch to `to` goes on."""
        self._recovery.lost(failure, to.name)

    def on_step(self, listener: Callable[[StepStats], None] | None) -> None:
        """Tell `listener` of every step of any engine; None: no longer."""
        self._starter.on_step = listener

    def switching(self, text: str, who: str) -> None:
        """Enter the state."""
        self._state.enter(State.SWITCHING, text, who=who)

    def install(self, engine: Engine, profile: Profile, who: str) -> list[str]:
        """It serves from now on. Returns as `Service.install`."""
        limits = self._service.install(engine, profile)
        self._recovery.recovered()
        self._state.enter(State.SERVING, f"serving {profile.name}", who=who)
        return limits

    def keep(self, who: str) -> None:
        """Whatever was before the switch goes on: the engine that served, or none."""
        if self.engine is not None and self.engine.is_dead:
            # Only as the engine that serves is it looked after.
            self._state.enter(State.SERVING, f"back to {self.profile.name}, whose engine has died", who=who)
        elif self.engine is not None:
            self._state.enter(State.SERVING, f"{self.profile.name} goes on serving", who=who)
        else:
            self._state.enter(State.DEAD, f"no engine runs, as before the switch from {self.profile.name}", who=who)

    def stopping(self) -> None:
        """The host ends with no engine to drain: nobody need wait for one at the gate."""
        self.entry.detach(Unavailable(State.DRAINING, "The server is stopping; try another one."))

    def uninstall(self) -> None:
        """No engine serves now; the switch ends the one that did."""
        self._service.uninstall()

    def retire(self, engine: Engine) -> None:
        """Close its app when its last answer is written."""
        self._service.retire(engine)
