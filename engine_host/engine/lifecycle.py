"""The lifecycle: one owner of the engine and of the host's state.

    state       entered when                                  left for
    starting    the host starts, or a restart was asked for   serving; dead (a restart failed)
    serving     the engine answers requests                   draining; dead
    draining    stop or restart asked for: no new requests,   starting; the host ends
                those in flight finish until the deadline
    dead        the engine died or did not come up            recovering; starting; the host ends
    recovering  after the backoff, the engine starts again    serving; dead

`run` is the only writer. Everybody else sends it a command and awaits its outcome. A first start that fails ends the
host (the operator is at the terminal, and a wrong profile does not heal); later failures are retried with growing
pauses until `CRASH_LIMIT` within `CRASH_WINDOW_S`, then the host stays up, dead, and says why.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from engine_host.engine.port import Backlog, Engine, EngineFacts, EngineStartError, StepSink
from engine_host.engine.start_progress import phase_of
from engine_host.gateway.entry import Entry
from engine_host.gateway.unavailable import Unavailable
from engine_host.protocol.errors import EXIT_FAILED, EXIT_REFUSED, OperatorError
from engine_host.protocol.events import Severity
from engine_host.protocol.snapshot import Failure, State

CRASH_LIMIT = 3
"""Crashes within `CRASH_WINDOW_S` after which the host stops trying: a loop would hide the fault and heat the node."""
CRASH_WINDOW_S = 300.0
BACKOFF_S = (1.0, 5.0, 15.0)
"""Pause before the restart after the first, second, ... crash in the window."""
_DEATH_POLL_S = 0.1
"""How often the engine is asked whether it lives: DEAD is promised within a second."""
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
        backoff_s: Sequence[float] = BACKOFF_S,
    ) -> None:
        self._make_engine = make_engine
        self._entry = entry
        self._sink = sink
        self._log = log
        self._on_event = on_event
        self._on_started = on_started
        self._on_gone = on_gone
        self._backoff_s = backoff_s
        self._commands: asyncio.Queue[_Command] = asyncio.Queue()
        self._force = asyncio.Event()
        self._crashes: deque[float] = deque()
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
        return len(self._recent_crashes())

    @property
    def restart_in_s(self) -> float | None:
        return None if self._restart_at is None else max(0.0, self._restart_at - time.monotonic())

    @property
    def phase(self) -> tuple[str | None, float | None]:
        """`(what it is doing, in words; for how long, seconds)` while starting or draining."""
        if self._drain_deadline is not None:
            left = max(0.0, self._drain_deadline - time.monotonic())
            waiting_for = self._entry.inflight
            text = f"draining: {waiting_for} {_requests(waiting_for)} left, {left:.0f} s at most"
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
        """Stop waiting for requests and for a start under way."""
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
        assert self._engine is not None
        while not self._engine.is_dead:
            if command := await self._command_within(_DEATH_POLL_S):
                return command
        await self._died()
        return None

    async def _died(self) -> None:
        """DEAD comes first: readers and clients must know before the ruins are cleared away."""
        assert self._engine is not None
        await asyncio.sleep(_LAST_WORDS_S)
        reason, lines = self._log.errors_since(self._log_mark)
        self._crashed("engine.died", "engine died", reason or self._engine.death or "it gave no reason", lines)
        await self._discard_engine(0.0)

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
        except EngineStartError as error:
            await asyncio.sleep(_LAST_WORDS_S)
            reason, lines = self._log.errors_since(self._log_mark)
            failure = EngineStartError(_better(error.reason, reason), [*error.lines, *lines][-12:])
            await self._discard_engine(0.0)
            if first:
                raise failure from error
            self._crashed("engine.start_failed", "engine did not start", failure.reason, list(failure.lines))
            return None
        except OperatorError:
            # The profile names something that this vLLM does not know: found before anything was started.
            await self._discard_engine(0.0)
            raise
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

    async def _until_started(self, engine: Engine) -> _Command | None:
        """Wait for the start, a command to stop, or force; restarts asked for meanwhile are refused."""
        start = asyncio.create_task(engine.start(self._sink), name="engine-start")
        try:
            while not start.done():
                command = await self._command_within(0.2, start)
                if command is not None and command.kind == "restart":
                    command.done.set_exception(
                        OperatorError(
                            "the engine is already starting",
                            "Follow it with `vllm-console watch`.",
                            exit_code=EXIT_REFUSED,
                        )
                    )
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
        await self._drain(command, "restart")
        await self._discard_engine(_STOP_S)
        self._crashes.clear()
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
        await self._drain(command, "stop")
        await self._discard_engine(_STOP_S)
        self._on_event("host.stopped", "the engine has stopped", who=command.who)
        command.done.set_result("host stopped")
        while not self._commands.empty():
            self._commands.get_nowait().done.set_result("host stopped")

    async def _drain(self, command: _Command, purpose: str) -> None:
        """No new requests; wait for those in flight until the deadline, force, or the engine's death."""
        if not self._is_up or self._engine is None:
            return
        inflight, limit_s = self._entry.inflight, command.drain_timeout_s
        self._drain_deadline = time.monotonic() + limit_s
        refusal = Unavailable(State.DRAINING, f"The server drains for a {purpose}; try another one or later.", limit_s)
        self._entry.refuse(refusal)
        waiting = f"{inflight} {_requests(inflight)} in flight get {limit_s:.0f} s" if inflight else "nothing in flight"
        self._enter(State.DRAINING, f"draining for a {purpose}: {waiting}", who=command.who)
        idle = asyncio.create_task(self._entry.wait_idle())
        force = asyncio.create_task(self._force.wait())
        while time.monotonic() < self._drain_deadline and not self._engine.is_dead:
            left = self._drain_deadline - time.monotonic()
            done, _ = await asyncio.wait({idle, force}, timeout=min(left, 0.2), return_when=asyncio.FIRST_COMPLETED)
            if done:
                break
        idle.cancel()
        force.cancel()
        self._drain_deadline = None
        if left_over := self._entry.inflight:
            cause = "forced" if self._force.is_set() else f"{limit_s:.0f} s were over"
            self._on_event(
                "drain.cut_short",
                f"{left_over} {_requests(left_over)} ended early: {cause}",
                severity=Severity.WARNING,
                who=command.who,
            )
        self._entry.detach(refusal)

    async def _discard_engine(self, timeout_s: float) -> None:
        engine, self._engine = self._engine, None
        self._is_up = False
        self._engine_since = None
        if engine is not None:
            await engine.stop(0.0 if self._force.is_set() else timeout_s)
            self._on_gone()

    # --- small steps -----------------------------------------------------------------------------------------------

    def _crashed(self, kind: str, what: str, reason: str, lines: list[str]) -> None:
        """Record a crash, go DEAD and set when to try again, if at all."""
        self.failure = Failure(at=time.time(), reason=reason, lines=lines)
        self._crashes.append(time.monotonic())
        count = self.crashes_in_window
        if count >= CRASH_LIMIT:
            self._restart_at = None
            text = f"{what}: {reason}; {count} crashes in {CRASH_WINDOW_S / 60:.0f} min, giving up"
            why = Unavailable(State.DEAD, f"The engine failed {count} times and is not restarted: {reason}")
        else:
            pause = self._backoff_s[min(count, len(self._backoff_s)) - 1]
            self._restart_at = time.monotonic() + pause
            text = f"{what}: {reason}; starting again in {pause:.0f} s (crash {count} of {CRASH_LIMIT})"
            why = Unavailable(
                State.DEAD,
                f"The engine failed and is being restarted: {reason}",
                pause + (self.start_expected_s or 30.0),
            )
        self._entry.detach(why)
        self._enter(State.DEAD, text, kind=kind, severity=Severity.ERROR, data={"lines": lines})

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

    def _recent_crashes(self) -> deque[float]:
        while self._crashes and time.monotonic() - self._crashes[0] > CRASH_WINDOW_S:
            self._crashes.popleft()
        return self._crashes


def _requests(count: int) -> str:
    return "request" if count == 1 else "requests"


def _better(from_error: str, from_log: str | None) -> str:
    """vLLM's own exception says "Engine core initialization failed. See root cause above."; the log has the cause."""
    wrapper = "Engine core initialization failed" in from_error or "root cause" in from_error
    return from_log if wrapper and from_log else from_error
