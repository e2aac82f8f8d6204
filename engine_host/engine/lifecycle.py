"""The lifecycle: one owner of the engine and of the host's state.

    state       entered when                                  left for
    starting    the host starts, or a restart was asked for   serving; dead (a restart failed)
    serving     the engine answers requests                   draining; dead
    draining    stop or restart asked for: no new requests,   starting; the host ends
                those in flight finish until the deadline
    dead        the engine died or did not come up            recovering; starting; the host ends
    recovering  after the backoff, the engine starts again    serving; dead

`run` is the only writer. Everybody else sends it a command and awaits its outcome. A first start that fails ends the
host (the operator is at the terminal, and a wrong profile does not heal); later failures are retried as `crash_policy`
says, and when that gives up the host stays up, dead, and says why.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from engine_host.engine.crash_policy import CRASH_LIMIT, CrashPolicy
from engine_host.engine.port import Backlog, Engine, EngineFacts, EngineStartError, StepSink
from engine_host.engine.start_progress import phase_of
from engine_host.gateway.entry import Entry
from engine_host.gateway.unavailable import Unavailable
from engine_host.protocol.errors import EXIT_FAILED, EXIT_REFUSED, OperatorError
from engine_host.protocol.events import Severity
from engine_host.protocol.snapshot import Failure, State

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
    also: list[_Command] = field(default_factory=list)
    """Commands that asked for the same while this one was under way."""
    done: asyncio.Future[str] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Lifecycle:
    """See the module docstring. `make_engine` returns a fresh, unstarted engine."""

    def __init__(
        self,
        make_engine: Callable[[], Engine],
        entry: Entry,
        sink: StepSink,
        log: EngineLog,
        on_event: EventSink,
        *,
        start_expected_s: float | None = None,
        on_started: Callable[[float], None] = lambda took_s: None,
        on_gone: Callable[[], None] = lambda: None,
        crashes: CrashPolicy | None = None,
    ) -> None:
        self._make_engine = make_engine
        self._entry = entry
        self._sink = sink
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
        self.start_expected_s = start_expected_s
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
            waiting_for = self._entry.inflight
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
        return await self._send(_Command("stop", drain_timeout_s, who))

    async def restart(self, drain_timeout_s: float, who: str = "host") -> str:
        """Drain, stop, start; returns when the engine serves again. Also brings a dead one back."""
        return await self._send(_Command("restart", drain_timeout_s, who))

    def force(self) -> None:
        """Stop waiting for requests in flight and for the engine's own end."""
        self._force.set()

    async def _send(self, command: _Command) -> str:
        self._commands.put_nowait(command)
        return await command.done

    # --- the owner -------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Own the engine until a stop command. Raises `EngineStartError` when the first start fails."""
        command = await self._start(State.STARTING, first=True)
        while command is None or command.kind != "stop":
            if command is not None:
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
        self._entry.detach(Unavailable(state, "The engine is starting.", self.start_expected_s or 30.0))
        self.generation += 1
        self._log_mark = self._log.mark()
        self._start_began = self._phase_began = time.monotonic()
        self._phase = "loading vLLM"
        engine = self._engine = self._make_engine()
        try:
            command = await self._until_started(engine)
        except (EngineStartError, OperatorError) as error:
            await self._start_failed(error, first=first)
            return None
        finally:
            took_s = time.monotonic() - self._start_began
            self._start_began = None
        if command is not None:
            return command
        self._is_up = True
        self._engine_since = time.monotonic()
        self.start_took_s = self.start_expected_s = took_s
        self._on_started(took_s)
        self._entry.attach(engine.app)
        self._enter(State.SERVING, f"serving {engine.facts.model} after {took_s:.1f} s")
        return None

    async def _start_failed(self, error: EngineStartError | OperatorError, *, first: bool) -> None:
        """Tell why. Raises when it was the first start, which ends the host."""
        await asyncio.sleep(_LAST_WORDS_S)
        reason, lines = self._log.errors_since(self._log_mark)
        if isinstance(error, OperatorError):
            # The profile names something that this vLLM does not know: found before anything was started.
            failure = EngineStartError(error.fact)
        else:
            failure = EngineStartError(_better(error.reason, reason), [*error.lines, *lines][-12:])
        await self.discard_engine(0.0)
        if not first:
            self._crashed(
                "engine.start_failed", "engine did not start", failure.reason, list(failure.lines), had_served=False
            )
            return
        self.failure = _failure(failure.reason, failure.lines)
        self._enter(State.DEAD, f"engine did not start: {self.failure.reason}", severity=Severity.ERROR)
        raise error if isinstance(error, OperatorError) else failure

    async def _until_started(self, engine: Engine) -> _Command | None:
        """Wait for the start or a command to stop; restarts asked for meanwhile are refused."""
        start = asyncio.create_task(engine.start(self._sink), name="engine-start")
        try:
            while not start.done():
                command = await self._command_within(0.2, start)
                if command is not None and command.kind == "restart":
                    _refuse(command, "the engine is already starting", "Follow it with `vllm-console watch`.")
                elif command is not None:
                    return command
            start.result()
            return None
        finally:
            if not start.done():
                # The engine's own stop() ends the child, which makes the start in its thread fail.
                await engine.stop(0.0)
                await asyncio.wait({start}, timeout=_STOP_S)
                start.cancel()

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
        self._entry.refuse(refusal)
        inflight = self._entry.inflight
        waiting = f"{_requests(inflight)} in flight, {command.drain_timeout_s:.0f} s at most"
        self._enter(
            State.DRAINING,
            f"draining for a {command.kind}: {waiting if inflight else 'none in flight'}",
            who=command.who,
        )
        idle = asyncio.create_task(self._entry.wait_idle())
        while not (idle.done() or self._force.is_set() or self._engine.is_dead):
            left = self._drain_deadline - time.monotonic()
            if left <= 0:
                break
            if other := await self._command_within(min(left, 0.2), idle):
                command = self._also_draining(command, other)
        idle.cancel()
        limit_over = not self._force.is_set() and time.monotonic() >= self._drain_deadline
        self._drain_deadline = None
        if left_over := self._entry.inflight:
            cause = "the drain time is over" if limit_over else "forced" if self._force.is_set() else "the engine died"
            text = f"{_requests(left_over)} ended early: {cause}"
            self._on_event("drain.cut_short", text, severity=Severity.WARNING, who=command.who)
        self._entry.detach(refusal)
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
        self._entry.detach(why)
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
