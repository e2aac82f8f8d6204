"""The lifecycle: one owner of the engine and of the host's state.

    state       entered when                                  left for
    starting    the host starts, or a restart was asked for   serving; dead (a restart failed)
    serving     the engine answers requests                   switching; draining; dead
    switching   another profile was asked for and its         serving (the new profile, or the
                preflight has passed (`switch`)               former one); draining; dead
    draining    stop or restart asked for: no new requests,   starting; the host ends
                those in flight finish until the deadline
    dead        the engine died or did not come up            recovering; starting; switching; the host ends
    recovering  after the backoff, the engine starts again    serving; dead

`run` is the only writer. Everybody else sends it a command and awaits its outcome. A first start that fails ends the
host (the operator is at the terminal, and a wrong profile does not heal); later failures are retried as `crash_policy`
says, and when that gives up the host stays up, dead, and says why.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from engine_host.engine.crash_policy import CRASH_LIMIT, CrashPolicy
from engine_host.engine.port import Backlog, Engine, EngineFacts, EngineStartError, StepSink, StepStats
from engine_host.engine.start_progress import phase_of
from engine_host.engine.switch import Cancelled, Interrupted, Report, Switch, SwitchOrder
from engine_host.engine.timeline import PhaseTimes
from engine_host.gateway.entry import Entry
from engine_host.gateway.unavailable import Unavailable
from engine_host.profiles import Profile
from engine_host.protocol.errors import EXIT_FAILED, EXIT_REFUSED, OperatorError
from engine_host.protocol.events import Severity
from engine_host.protocol.snapshot import Failure, State
from engine_host.protocol.switching import Outcome, SwitchResult

T = TypeVar("T")

_DEATH_POLL_S = 0.1
"""How often the engine is asked whether it lives: DEAD is promised within a second."""
_LOG_WINDOW_S = 2.0
"""A death is explained by what was logged within the last one or two of these: the log of a long life holds errors of
rejected requests that killed nothing."""
_LAST_WORDS_S = 0.3
"""Between an engine's end and its last lines in the log: it writes through a buffer, the log is read in steps."""
_STOP_S = 10.0
"""What an idle engine gets to end by itself; measured 2 to 5 s."""


class EngineLog(Protocol):
    """What the lifecycle needs of the engine's log: lines since a mark, and which of them say why it failed."""

    def mark(self) -> int: ...
    def errors_since(self, mark: int) -> tuple[str | None, list[str]]:
        """`(root reason or None, the error lines)`."""


EventSink = Callable[..., Any]
"""`EventLog.append`: (kind, text, *, severity, who, data)."""


@dataclass
class _Command:
    kind: str
    drain_timeout_s: float
    who: str
    order: SwitchOrder | None = None
    """Of a `switch`."""
    also: list[_Command] = field(default_factory=list)
    """Commands that asked for the same while this one was under way."""
    done: asyncio.Future[Any] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


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
        on_gone: Callable[[], None] = lambda: None,
        crashes: CrashPolicy | None = None,
    ) -> None:
        self.profile = profile
        """What serves, or is to serve."""
        self.entry = entry
        self._make_engine = make_engine
        self._sink = sink
        self.on_step: Callable[[StepStats], None] | None = None
        """A switch looks for the first token of the new engine."""
        self._log = log
        self._on_event = on_event
        self._on_started = on_started
        self._on_gone = on_gone
        self._crashes = crashes or CrashPolicy()
        self._commands: asyncio.Queue[_Command] = asyncio.Queue()
        self._force = asyncio.Event()
        self._engine: Engine | None = None
        self._is_up = False
        self._engine_since: float | None = None
        self._start_began: float | None = None
        self._phase: str | None = None
        self._phase_began = 0.0
        self._log_mark = 0
        self._drain_deadline: float | None = None
        self._restart_at: float | None = None
        self.state = State.STARTING
        self.state_since = time.time()
        self.state_version = 1
        self.generation = 0
        self._start_expected_s = start_expected_s
        self._starting: Profile | None = None
        self.switch_under_way: Switch | None = None
        self.last_switch: SwitchResult | None = None
        self._retiring: set[asyncio.Task[None]] = set()
        self.start_took_s: float | None = None
        self.failure: Failure | None = None

    # --- what others read ------------------------------------------------------------------------------------------

    @property
    def facts(self) -> EngineFacts | None:
        return self._engine.facts if self._engine is not None and self._is_up else None

    @property
    def backlog(self) -> Backlog | None:
        return self._engine.backlog() if self._engine is not None and self._is_up else None

    @property
    def engine(self) -> Engine | None:
        """The engine that serves, if one does."""
        return self._engine if self._is_up else None

    @property
    def start_expected_s(self) -> float | None:
        return self._start_expected_s(self._starting or self.profile)

    @property
    def engine_uptime_s(self) -> float | None:
        return None if self._engine_since is None else time.monotonic() - self._engine_since

    @property
    def start_elapsed_s(self) -> float | None:
        return None if self._start_began is None else time.monotonic() - self._start_began

    @property
    def crashes_in_window(self) -> int:
        return self._crashes.recent

    @property
    def restart_in_s(self) -> float | None:
        return None if self._restart_at is None else max(0.0, self._restart_at - time.monotonic())

    @property
    def phase(self) -> tuple[str | None, float | None]:
        """`(what it is doing, in words; for how long, seconds)` while starting or draining."""
        if self._drain_deadline is not None:
            left = max(0.0, self._drain_deadline - time.monotonic())
            waiting_for = self.entry.inflight
            text = f"draining: {_requests(waiting_for)} left, {left:.0f} s at most"
            return text, time.time() - self.state_since
        if self._start_began is None:
            return None, None
        return self._phase, time.monotonic() - self._phase_began

    def saw_log_line(self, line: str) -> None:
        """Follow the start in the engine's log; other lines are ignored."""
        if self._start_began is not None and (phase := phase_of(line)) and phase != self._phase:
            self._phase, self._phase_began = phase, time.monotonic()

    # --- what others ask for ---------------------------------------------------------------------------------------

    async def stop(self, drain_timeout_s: float, who: str = "host") -> str:
        """Drain, stop the engine, end `run`; returns when that is done."""
        done: str = await self._send(_Command("stop", drain_timeout_s, who))
        return done

    async def restart(self, drain_timeout_s: float, who: str = "host") -> str:
        """Drain, stop, start; returns when the engine serves again. Also brings a dead one back."""
        done: str = await self._send(_Command("restart", drain_timeout_s, who))
        return done

    def force(self) -> None:
        """Stop waiting for requests in flight and for the engine's own end."""
        self._force.set()

    async def switch(
        self, order: SwitchOrder, preflight: Callable[[Profile], Awaitable[Report]], times: PhaseTimes
    ) -> SwitchResult:
        """Change to another profile; returns when that is done, rolled back, refused or cancelled.

        Raises `OperatorError`: one is under way already, or the host is in no state for it.
        """
        if (other := self.switch_under_way) is not None:
            since = time.strftime("%H:%M:%S", time.localtime(other.since))
            raise OperatorError(
                f"{other.order.who} switches to {other.order.profile.name} since {since}",
                "Follow it with `vllm-console switch --status`, or cancel it with `vllm-console switch --cancel`.",
                exit_code=EXIT_REFUSED,
            )
        if self.state not in (State.SERVING, State.DEAD):
            raise OperatorError(
                f"the host is {self.state}, and a profile is switched while it is serving or dead",
                "Follow it with `vllm-console watch` and try again.",
                exit_code=EXIT_REFUSED,
            )
        self.switch_under_way = Switch(self, order, preflight, times)
        try:
            result: SwitchResult = await self._send(_Command("switch", order.drain_timeout_s, order.who, order))
        finally:
            self.switch_under_way = None
        return result

    def cancel_switch(self) -> None:
        """Raises `OperatorError` when there is none, or when it can only go forward or be rolled back."""
        under_way = self.switch_under_way
        if under_way is None or not under_way.can_cancel:
            fact = "no switch is under way" if under_way is None else "the switch can no longer be cancelled"
            raise OperatorError(fact, "See `vllm-console switch --status`.", exit_code=EXIT_REFUSED)
        under_way.cancel.set()

    async def _send(self, command: _Command) -> Any:
        self._commands.put_nowait(command)
        return await command.done

    # --- the owner -------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Own the engine until a stop command. Raises `EngineStartError` when the first start fails."""
        command = await self._start(State.STARTING, first=True)
        while command is None or command.kind != "stop":
            if command is not None and command.kind == "switch":
                command = await self._switch(command)
            elif command is not None:
                command = await self._restart(command)
            elif self.state is State.SERVING:
                command = await self._serve()
            elif self._restart_at is None:
                command = await self._commands.get()
            else:
                command = await self._wait_and_recover()
        await self._stop(command)

    async def _serve(self) -> _Command | None:
        """Until a command comes or the engine dies."""
        engine = self._engine
        assert engine is not None
        older, newer, marked_at = self._log_mark, self._log.mark(), time.monotonic()
        while not engine.is_dead:
            if time.monotonic() - marked_at > _LOG_WINDOW_S:
                older, newer, marked_at = newer, self._log.mark(), time.monotonic()
            if command := await self._command_within(_DEATH_POLL_S):
                return command
        await self._died(engine, older)
        return None

    async def _died(self, engine: Engine, log_mark: int) -> None:
        """DEAD comes first: readers and clients must know before the ruins are cleared away."""
        await asyncio.sleep(_LAST_WORDS_S)
        reason, lines = self._log.errors_since(log_mark)
        death = engine.death
        if death is not None and (death.by_signal or reason is None):
            reason = death.text
        self._crashed("engine.died", "engine died", reason or "it gave no reason", lines, had_served=True)
        await self.discard_engine(0.0)

    async def _wait_and_recover(self) -> _Command | None:
        assert self._restart_at is not None
        command = await self._command_within(max(0.0, self._restart_at - time.monotonic()))
        self._restart_at = None
        return command if command is not None else await self._start(State.RECOVERING)

    async def _start(self, state: State, *, first: bool = False) -> _Command | None:
        """Start an engine; returns a stop command that arrived meanwhile, which ended the start."""
        expected = f", about {self.start_expected_s:.0f} s" if self.start_expected_s else ""
        self._enter(state, f"starting the engine{expected}")
        self.entry.detach(Unavailable(state, "The engine is starting.", self.start_expected_s or 30.0))
        try:
            engine = await self.bring_up(self.profile, None)
        except (EngineStartError, OperatorError) as error:
            await self._start_failed(error, first=first)
            return None
        except Interrupted as stop:
            command: _Command = stop.command
            return command
        text = f"serving {engine.facts.model} after {self.start_took_s:.1f} s"
        self.install(engine, self.profile, text, "host")
        return None

    # --- what a switch may do (`switch.Deck`) ----------------------------------------------------------------------

    async def bring_up(self, profile: Profile, cancel: asyncio.Event | None) -> Engine:
        """Start an engine; the one that serves, if any, is left alone. Raises `EngineStartError` with the engine's
        own reason, `Interrupted`, `Cancelled`; then nothing of the new engine is left."""
        self.generation += 1
        self._log_mark = self._log.mark()
        self._starting = profile
        self._start_began = self._phase_began = time.monotonic()
        self._phase = "loading vLLM"
        engine = self._make_engine(profile)
        try:
            async with asyncio.timeout(profile.switch.start_deadline_s):
                await self.uninterrupted(engine.start(self._take_step), cancel)
        except TimeoutError:
            await engine.stop(0.0)
            limit_s = profile.switch.start_deadline_s
            raise EngineStartError(
                f"the engine did not start within {limit_s:.0f} s (switch.start_deadline_s); "
                f"it was {self._phase or 'starting'}"
            ) from None
        except EngineStartError as error:
            await engine.stop(0.0)
            await asyncio.sleep(_LAST_WORDS_S)
            reason, lines = self._log.errors_since(self._log_mark)
            raise EngineStartError(_better(error.reason, reason), [*error.lines, *lines][-12:]) from error
        except BaseException:
            await engine.stop(0.0)
            raise
        finally:
            took_s = time.monotonic() - self._start_began
            self._start_began = self._starting = None
        self.start_took_s = took_s
        self._on_started(profile, took_s)
        return engine

    async def uninterrupted(self, work: Coroutine[Any, Any, T], cancel: asyncio.Event | None) -> T:
        """Await `work` while watching for commands: a stop raises `Interrupted`, others are refused."""
        task = asyncio.create_task(work)
        try:
            while not task.done():
                if cancel is not None and cancel.is_set():
                    raise Cancelled
                command = await self._command_within(0.1, task)
                if command is None:
                    continue
                if command.kind == "stop":
                    raise Interrupted(command)
                what = "the engine is already starting" if self.switch_under_way is None else "a switch is under way"
                _refuse(command, what, "Follow it with `vllm-console watch`.")
            return task.result()
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task}, timeout=_STOP_S)

    def switching(self, text: str, who: str) -> None:
        self._restart_at = None
        self._enter(State.SWITCHING, text, who=who)

    def install(self, engine: Engine, profile: Profile, text: str, who: str) -> None:
        self._engine, self.profile = engine, profile
        self._is_up = True
        self._engine_since = time.monotonic()
        self.entry.attach(engine.app)
        self._enter(State.SERVING, text, who=who)

    def uninstall(self) -> None:
        self._engine = None
        self._is_up = False
        self._engine_since = None
        self._on_gone()

    def keep(self, text: str, who: str, severity: Severity) -> None:
        state = State.SERVING if self.engine is not None else State.DEAD
        self._enter(state, text, kind="switch.kept", severity=severity, who=who)

    def retire(self, engine: Engine) -> None:
        """Its app still writes the answers that were under way; it is closed after the last of them."""
        task = asyncio.create_task(self._close_when_idle(engine), name="retire-app")
        self._retiring.add(task)
        task.add_done_callback(self._retiring.discard)

    async def _close_when_idle(self, engine: Engine) -> None:
        await self.entry.wait_left(engine.app)
        await engine.close_app()

    def _take_step(self, step: StepStats) -> None:
        self._sink(step)
        if self.on_step is not None:
            self.on_step(step)

    async def _switch(self, command: _Command) -> _Command | None:
        under_way = self.switch_under_way
        assert under_way is not None
        try:
            result = await under_way.run()
        except Interrupted as stop:
            _refuse(command, "the host is stopping", "Start it again with `engine-host serve PROFILE`.")
            interrupting: _Command = stop.command
            return interrupting
        except OperatorError as error:
            command.done.set_exception(error)
            return None
        self.last_switch = result
        self._tell(result)
        command.done.set_result(result)
        return None

    def _tell(self, result: SwitchResult) -> None:
        """What the state changes of a switch do not tell already."""
        if result.outcome is Outcome.FAILED:
            self.entry.let_go()
            self._crashed("switch.failed", "no engine after a switch", result.text, result.lines, had_served=False)
        else:
            good = result.outcome in (Outcome.SWITCHED, Outcome.UNCHANGED)
            severity = Severity.INFO if good else Severity.WARNING
            self._on_event(f"switch.{result.outcome}", result.text, severity=severity, who=result.who)

    # --- a start by itself -----------------------------------------------------------------------------------------

    async def _start_failed(self, error: EngineStartError | OperatorError, *, first: bool) -> None:
        """Tell why. Raises when it was the first start, which ends the host."""
        # An OperatorError: the profile names something that this vLLM does not know, found before anything started.
        reason = error.fact if isinstance(error, OperatorError) else error.reason
        lines = () if isinstance(error, OperatorError) else error.lines
        if not first:
            self._crashed("engine.start_failed", "engine did not start", reason, lines, had_served=False)
            return
        self.failure = _failure(reason, lines)
        self._enter(State.DEAD, f"engine did not start: {self.failure.reason}", severity=Severity.ERROR)
        raise error

    async def _restart(self, command: _Command) -> _Command | None:
        began = time.monotonic()
        instead = await self._drain(command)
        await self.discard_engine(_STOP_S)
        if instead is not command:
            return instead
        self._crashes.forgive()
        self._restart_at = None
        self.failure = None
        stop = await self._start(State.STARTING)
        if self.state is State.SERVING:
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

    async def _stop(self, command: _Command) -> None:
        await self._drain(command)
        await self.discard_engine(_STOP_S)
        self._on_event("host.stopped", "the engine has stopped", who=command.who)
        for stopped in (command, *command.also):
            stopped.done.set_result("host stopped")
        while not self._commands.empty():
            late = self._commands.get_nowait()
            if late.kind == "stop":
                late.done.set_result("host stopped")
            else:
                _refuse(late, "the host is stopping", "Start it again with `engine-host serve PROFILE`.")

    async def _drain(self, command: _Command) -> _Command:
        """No new requests; wait for those in flight until the deadline, force, or the engine's death.

        Returns the command to carry out: a stop that arrives meanwhile supersedes a restart, and the nearer deadline
        counts, so that nothing asked for earlier can hold up a stop.
        """
        if not self._is_up or self._engine is None:
            return command
        self._drain_deadline = time.monotonic() + command.drain_timeout_s
        refusal = Unavailable(
            State.DRAINING, f"The server drains for a {command.kind}; try another one.", command.drain_timeout_s
        )
        self.entry.refuse(refusal)
        inflight = self.entry.inflight
        waiting = f"{_requests(inflight)} in flight, {command.drain_timeout_s:.0f} s at most"
        self._enter(
            State.DRAINING,
            f"draining for a {command.kind}: {waiting if inflight else 'none in flight'}",
            who=command.who,
        )
        idle = asyncio.create_task(self.entry.wait_idle())
        while not (idle.done() or self._force.is_set() or self._engine.is_dead):
            left = self._drain_deadline - time.monotonic()
            if left <= 0:
                break
            if other := await self._command_within(min(left, 0.2), idle):
                command = self._also_draining(command, other)
        idle.cancel()
        limit_over = not self._force.is_set() and time.monotonic() >= self._drain_deadline
        self._drain_deadline = None
        if left_over := self.entry.inflight:
            cause = "the drain time is over" if limit_over else "forced" if self._force.is_set() else "the engine died"
            text = f"{_requests(left_over)} ended early: {cause}"
            self._on_event("drain.cut_short", text, severity=Severity.WARNING, who=command.who)
        self.entry.detach(refusal)
        return command

    def _also_draining(self, command: _Command, other: _Command) -> _Command:
        """`other` arrived while `command` drains; returns which of them to carry out."""
        assert self._drain_deadline is not None
        if other.kind == "restart":
            _refuse(other, f"the host already drains for a {command.kind}", "Follow it with `vllm-console watch`.")
            return command
        self._drain_deadline = min(self._drain_deadline, time.monotonic() + other.drain_timeout_s)
        if command.kind == "stop":
            command.also.append(other)
            return command
        _refuse(command, f"{other.who} stops the host", "Start it again with `engine-host serve PROFILE`.")
        self._on_event("drain.superseded", "the host will stop instead of restarting the engine", who=other.who)
        return other

    async def discard_engine(self, timeout_s: float = 0.0) -> None:
        """End the engine, if there is one, and everything it started."""
        engine, self._engine = self._engine, None
        self._is_up = False
        self._engine_since = None
        if engine is not None:
            await engine.stop(0.0 if self._force.is_set() else timeout_s)
            self._on_gone()

    # --- small steps -----------------------------------------------------------------------------------------------

    def _crashed(self, kind: str, what: str, reason: str, lines: Sequence[str], *, had_served: bool) -> None:
        """Record a crash, go DEAD and set when to try again, if at all."""
        self.failure = _failure(reason, lines)
        reason = self.failure.reason
        pause = self._crashes.crashed(had_served=had_served)
        count = self._crashes.recent
        if pause is None:
            self._restart_at = None
            text = f"{what}: {reason}; {count} crashes, giving up: `vllm-console restart` tries again"
            why = Unavailable(State.DEAD, f"The engine failed {count} times and is not restarted: {reason}")
        else:
            self._restart_at = time.monotonic() + pause
            text = f"{what}: {reason}; starting again in {pause:.0f} s (crash {count} of {CRASH_LIMIT})"
            why = Unavailable(
                State.DEAD,
                f"The engine failed and is being restarted: {reason}",
                pause + (self.start_expected_s or 30.0),
            )
        self.entry.detach(why)
        self._enter(State.DEAD, text, kind=kind, severity=Severity.ERROR, data={"lines": self.failure.lines})

    def _enter(
        self,
        state: State,
        text: str,
        *,
        kind: str | None = None,
        severity: Severity = Severity.INFO,
        who: str = "host",
        data: dict[str, Any] | None = None,
    ) -> None:
        self.state = state
        self.state_since = time.time()
        self.state_version += 1
        self._on_event(kind or f"state.{state}", text, severity=severity, who=who, data=data or {})

    async def _command_within(self, timeout_s: float, until: asyncio.Future[Any] | None = None) -> _Command | None:
        """The next command, or None after the timeout or when `until` is done."""
        get = asyncio.create_task(self._commands.get())
        waits: set[asyncio.Future[Any]] = {get} if until is None else {get, until}
        await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if get.done():
            return get.result()
        get.cancel()
        await asyncio.wait({get})
        # The queue hands an item to a getter cancelled in the same tick back to the next get(), so none is lost.
        return None


_MAX_LINE_CHARS = 400
"""Of a reason or error line: vLLM prints whole configurations, and every snapshot carries the failure."""


def _failure(reason: str, lines: Sequence[str]) -> Failure:
    return Failure(at=time.time(), reason=_cut(reason), lines=[_cut(line) for line in lines])


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_LINE_CHARS else text[: _MAX_LINE_CHARS - 2] + " …"


def _requests(count: int) -> str:
    return f"{count} request" if count == 1 else f"{count} requests"


def _refuse(command: _Command, fact: str, remedy: str) -> None:
    command.done.set_exception(OperatorError(fact, remedy, exit_code=EXIT_REFUSED))


def _better(from_error: str, from_log: str | None) -> str:
    """vLLM's own exception says "Engine core initialization failed. See root cause above."; the log has the cause."""
    wrapper = "Engine core initialization failed" in from_error or "root cause" in from_error
    return from_log if wrapper and from_log else from_error
