"""Bringing one engine up: its deadline, what it does meanwhile, how long it took, and the reason when it fails."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

from engine_host.engine import last_words
from engine_host.engine.commands import Commands
from engine_host.engine.death_watch import DeathWatch
from engine_host.engine.dials import Dials
from engine_host.engine.last_words import EngineLog
from engine_host.engine.port import Engine, EngineStartError, StepSink, StepStats
from engine_host.engine.start_progress import phase_of
from engine_host.profiles import Profile


class Starter:
    """`make_engine` returns a fresh, unstarted engine for a profile."""

    def __init__(
        self,
        make_engine: Callable[[Profile], Engine],
        sink: StepSink,
        log: EngineLog,
        commands: Commands,
        dials: Dials,
        *,
        expected_s: Callable[[Profile], float | None],
        on_started: Callable[[Profile, float], None],
    ) -> None:
        self._make_engine = make_engine
        self._sink = sink
        self._log = log
        self._commands = commands
        self._dials = dials
        self._expected_s = expected_s
        self._on_started = on_started
        self.generation = 0
        """Engines so far."""
        self.took_s: float | None = None
        """Of the last start that succeeded."""
        self.log_mark = 0
        """Where the newest engine's lines begin."""
        self.on_step: Callable[[StepStats], None] | None = None
        """Is told of every step beside the sink."""
        self._profile: Profile | None = None
        self._prepared_s = 0.0
        """What the preparation of the engine prepared last took."""
        self._began: float | None = None
        self._phase = ""
        self._phase_began = 0.0

    @property
    def elapsed_s(self) -> float | None:
        """None while no engine starts."""
        return None if self._began is None else time.monotonic() - self._began

    @property
    def phase(self) -> tuple[str | None, float | None]:
        """`(what the engine is doing, in words; for how long, seconds)`, `(None, None)` while none starts."""
        return (None, None) if self._began is None else (self._phase, time.monotonic() - self._phase_began)

    def expected_s(self, otherwise: Profile) -> float | None:
        """What the start under way takes in all, or one of `otherwise` would take, as earlier ones did."""
        return self._expected_s(self._profile or otherwise)

    def saw_log_line(self, line: str) -> None:
        """Follow the start in the engine's log; other lines are ignored."""
        if self._began is not None and (phase := phase_of(line)) and phase != self._phase:
            self._phase, self._phase_began = phase, time.monotonic()

    async def prepare(self, profile: Profile, cancel: asyncio.Event | None, busy: str) -> Engine:
        """An engine for `bring_up` that is as far as it comes beside one that has the device. Raises as `bring_up`."""
        engine = self._made(profile)
        try:
            await self._limited(engine, profile, engine.prepare(self._take_step), cancel, busy)
            self._prepared_s = self.elapsed_s or 0.0
        finally:
            self._began = self._profile = None
        return engine

    async def bring_up(
        self, profile: Profile, cancel: asyncio.Event | None, busy: str, prepared: Engine | None = None
    ) -> Engine:
        """Start an engine, the `prepared` one if there is one; the one that serves, if any, is left alone. Raises
        `EngineStartError` with the engine's own reason, `Interrupted`, `Cancelled` (see `Commands.uninterrupted`);
        then nothing of the new engine is left."""
        if prepared is None:
            engine = self._made(profile)
        else:
            engine = prepared
            self._begin(profile, self._prepared_s)
        try:
            await self._limited(engine, profile, self._up(engine, profile), cancel, busy)
            self.took_s = self.elapsed_s or 0.0
        finally:
            self._began = self._profile = None
        self._on_started(profile, self.took_s)
        return engine

    def _made(self, profile: Profile) -> Engine:
        self.generation += 1
        self.log_mark = self._log.mark()
        self._phase = "loading vLLM"
        self._begin(profile, 0.0)
        return self._make_engine(profile)

    def _begin(self, profile: Profile, spent_s: float) -> None:
        self._profile = profile
        self._phase_began = time.monotonic()
        self._began = self._phase_began - spent_s

    async def probe(self, engine: Engine, timeout_s: float, cancel: asyncio.Event | None, busy: str) -> None:
        """The first token of an engine that nobody else knows of yet. Raises as `bring_up`, and ends the engine."""
        try:
            await self._commands.uninterrupted(engine.probe(timeout_s), cancel, busy)
        except EngineStartError as error:
            await engine.stop(0.0)
            raise await self.explained(error) from error
        except BaseException:
            await engine.stop(0.0)
            raise

    def death_watch(self, engine: Engine) -> DeathWatch:
        """Of an engine that has served for a while."""
        return DeathWatch(engine, self._log, self._log.mark())

    async def explained(self, error: EngineStartError) -> EngineStartError:
        """The same error with the reason that the newest engine's log gives."""
        return await last_words.of_failed_start(error, self._log, self.log_mark)

    async def _limited(
        self, engine: Engine, profile: Profile, work: Coroutine[Any, Any, None], cancel: asyncio.Event | None, busy: str
    ) -> None:
        """`work` of the start of `engine` within its deadline; ends the engine when it fails."""
        limit_s = profile.switch.start_deadline_s
        try:
            async with asyncio.timeout(limit_s - (self.elapsed_s or 0.0)):
                await self._commands.uninterrupted(work, cancel, busy)
        except TimeoutError:
            await engine.stop(0.0)
            raise EngineStartError(
                f"the engine did not start within {limit_s:.0f} s (switch.start_deadline_s); it was {self._phase}"
            ) from None
        except EngineStartError as error:
            await engine.stop(0.0)
            raise await last_words.of_failed_start(error, self._log, self.log_mark, profile.engine) from error
        except BaseException:
            await engine.stop(0.0)
            raise

    async def _up(self, engine: Engine, profile: Profile) -> None:
        await engine.start(self._take_step)
        await self._dials.prepare(engine, profile)

    def _take_step(self, step: StepStats) -> None:
        self._sink(step)
        if self.on_step is not None:
            self.on_step(step)
