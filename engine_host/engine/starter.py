"""Bringing one engine up: its deadline, what it does meanwhile, how long it took, and the reason when it fails."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

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

    async def bring_up(self, profile: Profile, cancel: asyncio.Event | None, busy: str) -> Engine:
        """Start an engine; the one that serves, if any, is left alone. Raises `EngineStartError` with the engine's
        own reason, `Interrupted`, `Cancelled` (see `Commands.uninterrupted`); then nothing of the new engine is left.
        """
        self.generation += 1
        self.log_mark = self._log.mark()
        self._profile = profile
        self._began = self._phase_began = time.monotonic()
        self._phase = "loading vLLM"
        try:
            engine = await self._start(profile, cancel, busy)
            self.took_s = time.monotonic() - self._began
        finally:
            self._began = self._profile = None
        self._on_started(profile, self.took_s)
        return engine

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

    async def _start(self, profile: Profile, cancel: asyncio.Event | None, busy: str) -> Engine:
        engine = self._make_engine(profile)
        limit_s = profile.switch.start_deadline_s
        try:
            async with asyncio.timeout(limit_s):
                await self._commands.uninterrupted(self._up(engine, profile), cancel, busy)
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
        return engine

    async def _up(self, engine: Engine, profile: Profile) -> None:
        await engine.start(self._take_step)
        await self._dials.prepare(engine, profile)

    def _take_step(self, step: StepStats) -> None:
        self._sink(step)
        if self.on_step is not None:
            self.on_step(step)
