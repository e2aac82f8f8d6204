"""The lifecycle: one owner of the engine and of the host's state.

    state       entered when                                  left for
    starting    the host starts, or a restart was asked for   serving; dead (a restart failed)
    serving     the engine answers requests                   switching; draining; dead
    switching   another profile was asked for and its         serving (the new profile, or the
                preflight has passed (`switch`)               former one); draining; dead
    draining    stop or restart asked for: no new requests,   starting; the host ends
                those in flight finish until the deadline
    (paused)    serving, as everybody is told it while an     -
                operator has paused the gate; and (draining)
                while one drains it (`throttle`)
    dead        the engine died or did not come up            recovering; starting; switching; the host ends
    recovering  after the backoff, the engine starts again    serving; dead

`run` is the only writer, by itself or through the parts that it hands its commands to. Everybody else sends it a
command and awaits its outcome. A first start that fails ends the host (the operator is at the terminal, and a wrong
profile does not heal); later failures are retried as `crash_policy` says, and when that gives up the host stays up,
dead, and says why.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from engine_host.engine import death_watch
from engine_host.engine.commands import Command, Commands, Interrupted
from engine_host.engine.crash_policy import CrashPolicy
from engine_host.engine.death_watch import DeathWatch
from engine_host.engine.deck import Deck
from engine_host.engine.dials import Dials
from engine_host.engine.drain import Drain
from engine_host.engine.host_state import EventSink, HostState
from engine_host.engine.last_words import EngineLog
from engine_host.engine.port import Backlog, Engine, EngineFacts, EngineStartError, StepSink
from engine_host.engine.recovery import Recovery
from engine_host.engine.service import Service
from engine_host.engine.starter import Starter
from engine_host.engine.switch import Switch, SwitchOrder
from engine_host.engine.switch_plan import Checked
from engine_host.engine.switching import Switching
from engine_host.engine.timeline import PhaseTimes
from engine_host.gateway.entry import Entry
from engine_host.gateway.unavailable import Unavailable
from engine_host.profiles import Profile
from engine_host.protocol.errors import EXIT_FAILED, OperatorError
from engine_host.protocol.snapshot import Failure, State
from engine_host.protocol.switching import SwitchResult
from engine_host.throttle.throttle import Throttle

_STOP_S = 10.0
"""What an engine gets to end by itself if it has to (`vllm.core_processes.keeps_something`)."""


class Lifecycle:
    """See the module docstring. `make_engine` returns a fresh, unstarted engine for a profile."""

    def __init__(
        self,
        profile: Profile,
        make_engine: Callable[[Profile], Engine],
        entry: Entry,
        sink: StepSink,
        log: EngineLog,
        on_event: EventSink,
        *,
        start_expected_s: Callable[[Profile], float | None] = lambda profile: None,
        on_started: Callable[[Profile, float], None] = lambda profile, took_s: None,
        on_serving: Callable[[], None] = lambda: None,
        on_gone: Callable[[], None] = lambda: None,
        crashes: CrashPolicy | None = None,
    ) -> None:
        self.entry = entry
        self._log = log
        self._on_event = on_event
        self._commands = Commands()
        self._force = asyncio.Event()
        self._state = HostState(on_event)
        self.dials = Dials(on_event)
        self.throttle = Throttle(entry.gate, on_event, self._state.close_gate)
        self.throttle.attach(profile)
        self._service = Service(profile, entry, self.dials, self.throttle, on_serving, on_gone)
        self._starter = Starter(
            make_engine, sink, log, self._commands, self.dials, expected_s=start_expected_s, on_started=on_started
        )
        self._recovery = Recovery(
            self._state,
            entry,
            crashes or CrashPolicy(),
            lambda: self.start_expected_s,
            lambda: self.start_elapsed_s,
        )
        deck = Deck(self._state, self._service, self._starter, self._recovery, self._commands)
        self._switching = Switching(self._state, self._commands, deck, self._recovery, on_event)
        self._drain: Drain | None = None

    # --- what others read ------------------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        """As it is shown."""
        return self._state.shown

    @property
    def state_since(self) -> float:
        return self._state.since

    @property
    def state_version(self) -> int:
        return self._state.version

    @property
    def profile(self) -> Profile:
        """What serves, or is to serve."""
        return self._service.profile

    @property
    def engine(self) -> Engine | None:
        """The engine that serves, if one does."""
        return self._service.engine

    @property
    def facts(self) -> EngineFacts | None:
        return self.engine.facts if self.engine is not None else None

    @property
    def backlog(self) -> Backlog | None:
        return self.engine.backlog() if self.engine is not None else None

    @property
    def engine_uptime_s(self) -> float | None:
        return self._service.uptime_s

    @property
    def generation(self) -> int:
        return self._starter.generation

    @property
    def start_expected_s(self) -> float | None:
        return self._starter.expected_s(otherwise=self.profile)

    @property
    def start_elapsed_s(self) -> float | None:
        return self._starter.elapsed_s

    @property
    def start_took_s(self) -> float | None:
        return self._starter.took_s

    @property
    def failure(self) -> Failure | None:
        return self._recovery.failure

    @property
    def crashes_in_window(self) -> int:
        return self._recovery.crashes_in_window

    @property
    def restart_in_s(self) -> float | None:
        return self._recovery.restart_in_s if self.state is State.DEAD else None

    @property
    def phase(self) -> tuple[str | None, float | None]:
        """`(what it is doing, in words; for how long, seconds)` while starting or draining."""
        if self._drain is not None:
            return self._drain.phase, time.time() - self.state_since
        if self.state is State.DRAINING and self._state.now is State.SERVING:
            left = self.entry.inflight
            return f"draining: {left or 'none'} in flight, until it is resumed", time.time() - self.state_since
        return self._starter.phase

    @property
    def switch_under_way(self) -> Switch | None:
        return self._switching.under_way

    @property
    def switch_refusal(self) -> OperatorError | None:
        """Why no switch can begin now; None if one can."""
        return self._switching.refusal

    @property
    def last_switch(self) -> SwitchResult | None:
        return self._switching.last

    def just_died(self) -> Unavailable:
        """What clients of an engine that has died are told until the lifecycle has seen it."""
        return self._recovery.just_died()

    def saw_log_line(self, line: str) -> None:
        """Follow the start in the engine's log; other lines are ignored."""
        self._starter.saw_log_line(line)

    # --- what others ask for ---------------------------------------------------------------------------------------

    async def stop(self, drain_timeout_s: float, who: str = "host") -> str:
        """Drain, stop the engine, end `run`; returns when that is done."""
        done: str = await self._commands.send(Command("stop", drain_timeout_s, who))
        return done

    async def restart(self, drain_timeout_s: float, who: str = "host") -> str:
        """Drain, stop, start; returns when the engine serves again. Also brings a dead one back."""
        done: str = await self._commands.send(Command("restart", drain_timeout_s, who))
        return done

    def force(self) -> None:
        """Stop waiting for requests in flight and for the engine's own end."""
        self._force.set()

    async def switch(
        self, order: SwitchOrder, preflight: Callable[[Profile], Coroutine[Any, Any, Checked]], times: PhaseTimes
    ) -> SwitchResult:
        """Change to another profile; returns when that is done, rolled back, refused or cancelled.

        Raises `OperatorError`: one is under way already, or the host is in no state for it.
        """
        return await self._switching.ask(order, preflight, times)

    def cancel_switch(self, who: str) -> Awaitable[SwitchResult]:
        """How the switch ended, once it has. Raises `OperatorError` when there is none, or when it can only go forward
        or be rolled back."""
        return self._switching.cancel(who)

    # --- the owner -------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Own the engine until a stop command. Raises `EngineStartError` when the first start fails."""
        command = await self._start(State.STARTING, first=True)
        while command is None or command.kind != "stop":
            if command is not None and command.kind == "switch":
                command = await self._switching.carry_out(command)
            elif command is not None:
                command = await self._restart(command)
            elif self._state.now is State.SERVING:
                command = await self._serve()
            elif (pause_s := self.restart_in_s) is not None:
                command = await self._wait_and_recover(pause_s)
            else:
                command = await self._commands.next()
        await self._stop(command)

    async def _serve(self) -> Command | None:
        """Until a command comes or the engine dies."""
        engine = self.engine
        assert engine is not None
        watch = DeathWatch(engine, self._log, self._starter.log_mark)
        while not watch.has_died():
            if command := await self._commands.within(death_watch.POLL_S):
                return command
        await self._died(watch)
        return None

    async def _died(self, watch: DeathWatch) -> None:
        """DEAD comes first: readers and clients must know before the ruins are cleared away."""
        self.entry.detach(self._recovery.just_died())
        failure = await watch.failure()
        self._recovery.crashed("engine.died", "engine died", failure, had_served=True)
        await self.discard_engine(0.0)

    async def _wait_and_recover(self, pause_s: float) -> Command | None:
        """The start stays due when the command turns out to change nothing: a switch that is refused, say."""
        if (command := await self._commands.within(pause_s)) is not None:
            return command
        self._recovery.call_off()
        return await self._start(State.RECOVERING)

    async def _start(self, state: State, *, first: bool = False) -> Command | None:
        """Start an engine; returns a stop command that arrived meanwhile, which ended the start."""
        expected = f", about {self.start_expected_s:.0f} s" if self.start_expected_s else ""
        self._state.enter(state, f"starting the engine{expected}")
        self.entry.detach(self._recovery.starting(state))
        try:
            engine = await self._starter.bring_up(self.profile, None, "the engine is already starting")
        except (EngineStartError, OperatorError) as error:
            self._recovery.start_failed(error, first=first)
            return None
        except Interrupted as stop:
            return stop.command
        self._service.install(engine, self.profile)
        self._recovery.recovered()
        self._state.enter(State.SERVING, f"serving {engine.facts.model} after {self.start_took_s:.1f} s")
        return None

    # --- commands --------------------------------------------------------------------------------------------------

    async def _restart(self, command: Command) -> Command | None:
        began = time.monotonic()
        instead = await self._drained(command)
        await self.discard_engine(_STOP_S)
        if instead is not command:
            return instead
        self._recovery.forgive()
        stop = await self._start(State.STARTING)
        if self._state.now is State.SERVING:
            command.done.set_result(f"engine restarted in {time.monotonic() - began:.1f} s")
        else:
            why = self.failure.reason if self.failure else "the host is stopping"
            command.done.set_exception(
                OperatorError(
                    f"the engine did not start again: {why}",
                    "See `vllm-console events`, mend the cause, then `vllm-console restart`.",
                    exit_code=EXIT_FAILED,
                )
            )
        return stop

    async def _stop(self, command: Command) -> None:
        await self._drained(command)
        await self.discard_engine(_STOP_S)
        self.throttle.close()
        self._on_event("host.stopped", "the engine has stopped", who=command.who)
        for stopped in (command, *command.also):
            stopped.done.set_result("host stopped")
        self._commands.end()

    async def _drained(self, command: Command) -> Command:
        """Let the requests in flight finish; returns the command to carry out, see `Drain.run`."""
        if self.engine is None:
            return command
        start_s = self._recovery.start_s
        self._drain = Drain(command, self.entry, self._commands, self._force, self._on_event, start_s)
        self._state.enter(State.DRAINING, self._drain.plan, who=command.who)
        try:
            return await self._drain.run(self.engine)
        finally:
            self._drain = None

    async def discard_engine(self, timeout_s: float = 0.0) -> None:
        """End the engine, if there is one, and everything it started."""
        await self._service.discard(0.0 if self._force.is_set() else timeout_s)
