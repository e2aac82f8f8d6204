"""The changing calls, every one behind the same steps.

    repeated key? -> expected state? -> audit intent -> do -> audit outcome -> event

The caller's role was weighed before its parameters were decoded (`dispatch`). An action belongs to the host, not to
the session that asked for it: when the session goes, the action runs on to its outcome, and that is audited.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec

from engine_host.protocol.envelope import ErrorCode, RpcError
from engine_host.protocol.errors import EXIT_REFUSED, OperatorError
from engine_host.protocol.events import Severity
from engine_host.protocol.methods import (
    Applied,
    Change,
    DialsApplied,
    DialSheet,
    Method,
    Reloaded,
    RestartParams,
    StopParams,
    SwitchParams,
    ThrottleApplied,
)
from engine_host.protocol.profiles import ProfileChanges
from engine_host.protocol.switching import SwitchResult
from engine_host.protocol.throttling import ThrottleSheet
from engine_host.telemetry.event_log import one_line

from .audit import AuditLog
from .controlled import Controlled
from .dispatch import refusal
from .requests import rpc_error
from .roles import Peer

log = logging.getLogger(__name__)

REMEMBERED_KEYS = 256
"""Idempotency keys whose outcome is kept. A retry comes within minutes; so many changes do not."""

INTERRUPTION_GRACE_S = 2.0
"""For an action cut short at the host's end to have that audited."""

Outcome = Applied | SwitchResult | RpcError


@dataclass(frozen=True)
class _Remembered:
    method: str
    params: bytes
    outcome: asyncio.Task[Outcome]


async def _restart(host: Controlled, params: Any, who: str) -> str:
    assert isinstance(params, RestartParams)
    return await host.restart_engine(params.drain_timeout_s, who)


async def _stop(host: Controlled, params: Any, who: str) -> str:
    assert isinstance(params, StopParams)
    return await host.stop_host(params.drain_timeout_s, who)


async def _switch(host: Controlled, params: Any, who: str) -> SwitchResult:
    assert isinstance(params, SwitchParams)
    return await host.switching.switch(params, who)


async def _cancel_switch(host: Controlled, params: Any, who: str) -> str:
    return await host.switching.cancel(who)


async def _reload_profiles(host: Controlled, params: Any, who: str) -> ProfileChanges:
    return host.switching.reload()


async def _set_dials(host: Controlled, params: Any, who: str) -> tuple[str, DialSheet]:
    return await host.inside.set_dials(params, who), host.inside.dials()


async def _abort_request(host: Controlled, params: Any, who: str) -> str:
    return host.inside.abort(params, who)


async def _pause(host: Controlled, params: Any, who: str) -> tuple[str, ThrottleSheet]:
    return host.throttle.pause(params, who), host.throttle.sheet()


async def _resume(host: Controlled, params: Any, who: str) -> tuple[str, ThrottleSheet]:
    return host.throttle.resume(params, who), host.throttle.sheet()


async def _set_throttle(host: Controlled, params: Any, who: str) -> tuple[str, ThrottleSheet]:
    return host.throttle.set(params, who), host.throttle.sheet()


async def _clear_throttle(host: Controlled, params: Any, who: str) -> tuple[str, ThrottleSheet]:
    return host.throttle.clear(params, who), host.throttle.sheet()


async def _auto_throttle(host: Controlled, params: Any, who: str) -> tuple[str, ThrottleSheet]:
    return host.throttle.auto(params, who), host.throttle.sheet()


Found = str | SwitchResult | ProfileChanges | tuple[str, DialSheet] | tuple[str, ThrottleSheet]
Apply = Callable[[Controlled, Any, str], Awaitable[Found]]

CHANGES: dict[str, Apply] = {
    "dials.set": _set_dials,
    "engine.restart": _restart,
    "host.stop": _stop,
    "pause": _pause,
    "profiles.reload": _reload_profiles,
    "requests.abort": _abort_request,
    "resume": _resume,
    "switch": _switch,
    "switch.cancel": _cancel_switch,
    "throttle.auto": _auto_throttle,
    "throttle.clear": _clear_throttle,
    "throttle.set": _set_throttle,
}
"""Method -> what applies it; exactly the methods of the table that are not read. A sentence becomes an `Applied`."""


class Actions:
    """Runs changing calls and owns them until their outcome."""

    def __init__(
        self,
        host: Controlled,
        audit: AuditLog,
        *,
        changes: dict[str, Apply] = CHANGES,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._host = host
        self._audit = audit
        self._changes = changes
        self._clock = clock
        self._remembered: OrderedDict[tuple[int, str], _Remembered] = OrderedDict()
        self._running: set[asyncio.Task[Outcome]] = set()
        self._is_closing = False

    def begin(self, method: Method, params: Change, peer: Peer) -> asyncio.Future[Outcome] | RpcError:
        """Start the action, or join the one begun earlier with the same key; an `RpcError` when neither is possible.

        The future never fails (it is cancelled if the host ends first) and must not be cancelled: others may wait for
        it too.
        """
        key = (peer.uid, params.idempotency_key)
        encoded = msgspec.json.encode(params)
        if earlier := self._remembered.get(key):
            if (earlier.method, earlier.params) != (method.name, encoded):
                return rpc_error(
                    ErrorCode.INVALID_PARAMS,
                    f"the idempotency key {one_line(params.idempotency_key, 60)} was used for another call",
                    "use a new key for a new change",
                )
            self._remembered.move_to_end(key)
            return earlier.outcome
        if self._is_closing:
            return self._conflict("the host is stopping", "start it again before changing anything")
        task = asyncio.create_task(self._outcome_of(method, params, peer), name=f"action {method.name}")
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        self._remembered[key] = _Remembered(method.name, encoded, task)
        self._forget_oldest()
        return task

    async def finish(self, deadline_s: float) -> None:
        """Take no more actions; wait for those that run, interrupt what is left at the deadline."""
        self._is_closing = True
        if self._running:
            await asyncio.wait(self._running, timeout=deadline_s)
        for task in self._running:
            task.cancel()
        if self._running:
            await asyncio.wait(self._running, timeout=INTERRUPTION_GRACE_S)

    def _forget_oldest(self) -> None:
        surplus = len(self._remembered) - REMEMBERED_KEYS
        done = [key for key, call in self._remembered.items() if call.outcome.done()] if surplus > 0 else []
        for key in done[:surplus]:
            del self._remembered[key]

    async def _outcome_of(self, method: Method, params: Change, peer: Peer) -> Outcome:
        """`_run`, its own mistakes turned into an outcome: nobody waits for an answer that does not come."""
        try:
            return await self._run(method, params, peer)
        except Exception as error:
            log.exception("%s failed", method.name)
            return _failed_inside(method, error)

    async def _run(self, method: Method, params: Change, peer: Peer) -> Outcome:
        if stale := self._stale(params):
            return stale
        record = {
            "id": uuid.uuid4().hex,
            "uid": peer.uid,
            "login": peer.login,
            "pid": peer.pid,
            "method": method.name,
            "reason": params.reason,
            "params": msgspec.to_builtins(params),
        }
        try:
            await self._write(record, "intent")
        except OperatorError as error:
            return rpc_error(ErrorCode.AUDIT, error.fact, error.remedy)
        started = time.monotonic()
        try:
            # Compared again: the state may have moved while the intent went to disk.
            outcome = self._stale(params) or await self._apply(method, params, peer, started)
        except asyncio.CancelledError:
            outcome = rpc_error(ErrorCode.FAILED, f"{method.name} was interrupted: the host ends", "start it again")
        took_s = time.monotonic() - started
        try:
            await self._write(record, "outcome", took_s=took_s, **_summary(outcome))
        except OperatorError as error:
            self._host.events.append("audit.unwritable", error.fact, severity=Severity.ERROR)
        self._announce(method, params, peer, outcome, took_s)
        return outcome

    async def _apply(self, method: Method, params: Change, peer: Peer, started: float) -> Outcome:
        limits = self._host.throttle.version
        try:
            result = await self._changes[method.name](self._host, params, peer.login)
        except OperatorError as error:
            if error.exit_code == EXIT_REFUSED:
                return self._conflict(error.fact, error.remedy)
            return refusal(error)
        except Exception as error:
            log.exception("%s failed", method.name)
            return _failed_inside(method, error)
        if isinstance(result, SwitchResult):
            return result
        state, version, took_s = self._host.state, self._host.state_version, time.monotonic() - started
        if isinstance(result, ProfileChanges):
            return Reloaded(state=state, state_version=version, took_s=took_s, text=result.text, changes=result)
        if isinstance(result, tuple):
            text, sheet = result
            if isinstance(sheet, ThrottleSheet):
                return ThrottleApplied(
                    state=state,
                    state_version=version,
                    took_s=took_s,
                    text=text,
                    throttle=sheet,
                    has_changed=self._host.throttle.version != limits,
                )
            return DialsApplied(state=state, state_version=version, took_s=took_s, text=text, dials=sheet.dials)
        return Applied(state=state, state_version=version, took_s=took_s, text=result)

    def _stale(self, params: Change) -> RpcError | None:
        expected = params.expected_state_version
        if expected is None or expected == self._host.state_version:
            return None
        fact = (
            f"the host is {self._host.state} at state version {self._host.state_version}; this call expected {expected}"
        )
        return self._conflict(fact, "look at the status again, then decide anew")

    def _conflict(self, fact: str, remedy: str) -> RpcError:
        state, version = self._host.state, self._host.state_version
        return rpc_error(ErrorCode.CONFLICT, fact, remedy, state=str(state), state_version=version)

    async def _write(self, record: dict[str, Any], phase: str, **more: Any) -> None:
        """Raises `OperatorError` and nothing else: an outcome must not be lost to a mistake in writing it down."""
        at = datetime.fromtimestamp(self._clock(), UTC).isoformat(timespec="milliseconds")
        state = {"state": str(self._host.state), "state_version": self._host.state_version}
        try:
            await self._audit.write({"at": at, "phase": phase, **record, **state, **more})
        except OperatorError:
            raise
        except Exception as error:
            log.exception("no audit record")
            fact = f"the audit log {self._audit.path} cannot be written: {type(error).__name__} inside the host"
            raise OperatorError(fact, "see the host's own log for the trace") from error

    def _announce(self, method: Method, params: Change, peer: Peer, outcome: Outcome, took_s: float) -> None:
        is_told = isinstance(outcome, DialsApplied | ThrottleApplied)  # in the text itself
        why = f" ({params.reason})" if params.reason and not is_told else ""
        if isinstance(outcome, SwitchResult):
            return  # the lifecycle tells it, whoever asked
        if isinstance(outcome, ThrottleApplied) and not outcome.has_changed:
            return  # it is no event that all is as it was
        if isinstance(outcome, Applied):
            text, severity, result = outcome.text, Severity.INFO, "applied"
        else:
            result = _fate(outcome)
            text = f"{method.name} {'unanswered' if result == 'unknown' else result}: {outcome.message}"
            severity = Severity.WARNING if result == "refused" else Severity.ERROR
        data = {"outcome": result, "reason": params.reason, "took_s": round(took_s, 3)}
        self._host.events.append(f"action.{method.name}", text + why, severity=severity, who=peer.login, data=data)


def _failed_inside(method: Method, error: Exception) -> RpcError:
    fact = f"{method.name} failed inside the host: {type(error).__name__}"
    return rpc_error(ErrorCode.INTERNAL, fact, "see the host's own log for the trace")


def _summary(outcome: Outcome) -> dict[str, Any]:
    if isinstance(outcome, SwitchResult):
        return {"outcome": str(outcome.outcome), "text": outcome.text, "timeline": msgspec.to_builtins(outcome.phases)}
    if isinstance(outcome, Applied):
        return {"outcome": "applied", "text": outcome.text}
    return {"outcome": _fate(outcome), "text": outcome.message}


def _fate(error: RpcError) -> str:
    """In the audit log and the events."""
    code = ErrorCode(error.code)
    if code in (ErrorCode.CONFLICT, ErrorCode.INVALID_PARAMS):
        return "refused"
    return "unknown" if code is ErrorCode.UNKNOWN_OUTCOME else "failed"
