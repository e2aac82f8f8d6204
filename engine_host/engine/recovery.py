"""After a failure: what it was, when the engine starts again, and what clients and operators are told of it."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from engine_host.engine import last_words
from engine_host.engine.crash_policy import CRASH_LIMIT, CrashPolicy
from engine_host.engine.host_state import HostState
from engine_host.engine.port import EngineStartError
from engine_host.gateway.entry import Entry
from engine_host.gateway.unavailable import Unavailable
from engine_host.protocol.errors import OperatorError
from engine_host.protocol.events import Severity
from engine_host.protocol.snapshot import Failure, State

START_S = 30.0
"""What a start is said to take while none was measured."""


class Recovery:
    """Goes DEAD and sets when to start again; the lifecycle does start."""

    def __init__(
        self,
        state: HostState,
        entry: Entry,
        crashes: CrashPolicy,
        start_expected_s: Callable[[], float | None],
        start_elapsed_s: Callable[[], float | None],
    ) -> None:
        """`start_expected_s` and `start_elapsed_s`: of the start under way, or of the next one."""
        self._state = state
        self._entry = entry
        self._crashes = crashes
        self._start_expected_s = start_expected_s
        self._start_elapsed_s = start_elapsed_s
        self.failure: Failure | None = None
        """The last one."""
        self._restart_at: float | None = None
        self._is_counted = False
        """The death of the engine that served, told by a switch which has not ended yet."""
        self._died_at: float | None = None
        """When clients were first told of the death of the engine that served, by the monotonic clock."""

    @property
    def start_s(self) -> float:
        """What a start takes, as it is told to clients."""
        return self._start_expected_s() or START_S

    @property
    def crashes_in_window(self) -> int:
        return self._crashes.recent

    @property
    def restart_in_s(self) -> float | None:
        """None when no start is due."""
        return None if self._restart_at is None else max(0.0, self._restart_at - time.monotonic())

    def call_off(self) -> None:
        """No start is due any more: it begins."""
        self._restart_at = None

    def forgive(self) -> None:
        """An operator's restart begins anew."""
        self._crashes.forgive()
        self._restart_at = None
        self._is_counted = False
        self.failure = None

    def start_failed(self, error: EngineStartError | OperatorError, *, first: bool) -> None:
        """Raises `error` when it was the first start, which ends the host."""
        if isinstance(error, OperatorError):
            # The profile names something that this vLLM does not know, found before anything started.
            failure = last_words.failure(error.fact)
        else:
            failure = last_words.failure(error.reason, error.lines, error.last_lines)
        if not first:
            self.crashed("engine.start_failed", "engine did not start", failure, had_served=False)
            return
        self.failure = failure
        self._state.enter(State.DEAD, f"engine did not start: {self.failure.reason}", severity=Severity.ERROR)
        raise error

    def recovered(self) -> None:
        """An engine serves: the last failure is past, and no start is due."""
        self._restart_at = None
        self._is_counted = False
        self._died_at = None
        self._crashes.serves()
        if self.failure is not None and self.failure.recovered_at is None:
            self.failure = msgspec.structs.replace(self.failure, recovered_at=time.time())

    def just_died(self) -> Unavailable:
        """What clients are told of a death until the lifecycle has dealt with it; its reason as soon as it is known."""
        now, elapsed_s = time.monotonic(), self._start_elapsed_s()
        if self._died_at is None:
            self._died_at = now
        began = self._died_at if elapsed_s is None else now - elapsed_s  # a switch may be starting another one
        if self.failure is not None and self.failure.recovered_at is None:
            state = State.SWITCHING if self._state.now is State.SWITCHING else State.DEAD
            return _being_restarted(state, self.failure.reason, self.start_s, began)
        return Unavailable(State.DEAD, "The engine has died.", self.start_s, began=began)

    def starting(self, state: State) -> Unavailable:
        """What clients are told while an engine starts, after a failure with its reason."""
        began = time.monotonic()
        if state is State.RECOVERING and self.failure is not None:
            return _being_restarted(state, self.failure.reason, self.start_s, began)
        return Unavailable(state, "The engine is starting.", self.start_s, began=began)

    def lost(self, failure: Failure, to: str) -> None:
        """An engine has died that a switch was about to replace by one of the profile `to`: there is none to start.

        Counted now: the lifecycle sees this death only if the switch ends without a new engine.
        """
        self.failure = failure
        self._crashes.crashed(had_served=True)
        self._is_counted = True
        text = f"engine died during the switch to {to}: {failure.reason}; new requests wait at the gate"
        self._state.tell("engine.died", text, Severity.ERROR, {"lines": failure.lines})

    def crashed(self, kind: str, what: str, failure: Failure, *, had_served: bool) -> None:
        """Record a crash, go DEAD and set when to try again, if at all."""
        self.failure = failure
        reason = failure.reason
        if not (had_served and self._is_counted):
            self._crashes.crashed(had_served=had_served)
        self._is_counted = False
        pause_s, count = self._crashes.pause_s, self._crashes.recent
        if pause_s is None:
            self._restart_at = None
            text = f"{what}: {reason}; {count} crashes, giving up: `vllm-console restart` tries again"
            message = f"The engine failed {count} times and is not restarted: {reason}"
            # Whenever an operator restarts it: it cannot be back any sooner.
            why = Unavailable(State.DEAD, message, self.start_s, reason=reason)
        else:
            now = time.monotonic()
            self._restart_at = now + pause_s
            text = f"{what}: {reason}; starting again in {pause_s:.0f} s (crash {count} of {CRASH_LIMIT})"
            why = _being_restarted(State.DEAD, reason, pause_s + self.start_s, now)
        self._entry.detach(why)
        self._state.enter(State.DEAD, text, kind=kind, severity=Severity.ERROR, data={"lines": failure.lines})


def _being_restarted(state: State, reason: str, back_in_s: float, began: float) -> Unavailable:
    return Unavailable(state, f"The engine failed and is being restarted: {reason}", back_in_s, reason, began)
