"""From a request to its answer: look the method up, weigh the caller's role, decode the parameters, call.

The role is weighed here and nowhere else, before the parameters are decoded: a caller who may not use a method learns
nothing of it. Reads are answered on the spot; changes go to `actions`.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from engine_host.protocol.envelope import ErrorCode, Request, RpcError, encode_error, encode_result
from engine_host.protocol.errors import EXIT_INVALID, EXIT_REFUSED, EXIT_TIMED_OUT, OperatorError
from engine_host.protocol.frames import MAX_FRAME_BYTES
from engine_host.protocol.methods import (
    EventList,
    EventsList,
    HistoryParams,
    Method,
    RequestList,
    RequestsList,
    Risk,
)
from engine_host.protocol.snapshot import Snapshot

from .controlled import Controlled
from .requests import Refused, decode_params, find_method, rpc_error
from .roles import Peer, may_call

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Call:
    """A request that its caller may make, its parameters decoded."""

    request: Request
    method: Method
    params: Any


def prepare(request: Request, peer: Peer) -> Call | Refused:
    method = find_method(request)
    if isinstance(method, Refused):
        return method
    if not may_call(peer.role, method):
        fact = f"{method.name} is {method.risk}; {peer.login} has the role {peer.role}"
        remedy = "connect as the user who runs the host, or as root"
        return Refused(request.id, rpc_error(ErrorCode.ROLE, fact, remedy, role=str(peer.role), risk=str(method.risk)))
    params = decode_params(request, method)
    if isinstance(params, Refused):
        return params
    if method.risk is not Risk.READ and request.id is None:
        fact = f"{method.name} without an id was not carried out: nobody could be told its outcome"
        return Refused(None, rpc_error(ErrorCode.INVALID_REQUEST, fact, 'add an "id" to the request'))
    return Call(request, method, params)


def _status(host: Controlled, params: Any) -> Snapshot:
    return host.snapshot()


def _history(host: Controlled, params: HistoryParams) -> Any:
    try:
        return host.history(params.series, params.span_s)
    except ValueError as error:
        return rpc_error(ErrorCode.INVALID_PARAMS, str(error), "the series are the dotted keys of the snapshot")


def _events_list(host: Controlled, params: EventsList) -> EventList:
    """The newest events that fit into one frame: 10,000 of them may not."""
    limit = params.limit
    while True:
        found = host.events.after(params.after_seq, limit)
        if limit == 1 or len(encode_result(None, found)) < MAX_FRAME_BYTES - 1024:
            return found
        limit = max(1, min(limit, len(found.events)) // 2)


def _requests_list(host: Controlled, params: RequestsList) -> RequestList:
    """As many as fit into one frame: ids are their clients' to choose, and may be long."""
    found = host.inside.requests(params)
    while len(found.requests) > 1 and len(encode_result(None, found)) > MAX_FRAME_BYTES - 1024:
        found = msgspec.structs.replace(found, requests=found.requests[: len(found.requests) // 2])
    return found


READS: dict[str, Callable[[Controlled, Any], Any]] = {
    "status": _status,
    "history": _history,
    "events.list": _events_list,
    "profiles.list": lambda host, params: host.switching.profiles(),
    "profiles.get": lambda host, params: host.switching.profile(params.name),
    "profiles.diff": lambda host, params: host.switching.diff(params.before, params.after),
    "switch.status": lambda host, params: host.switching.status(),
    "dials.get": lambda host, params: host.inside.dials(),
    "throttle.get": lambda host, params: host.throttle.sheet(),
    "requests.list": _requests_list,
    "kv.map": lambda host, params: host.inside.kv_map(params),
}
"""Reads that need nothing of the session; the subscriptions are the session's own."""

SLOW_READS: dict[str, Callable[[Controlled, Any], Awaitable[Any]]] = {
    "profiles.check": lambda host, params: host.switching.check(params.name),
    "switch.forecast": lambda host, params: host.switching.forecast(params),
}
"""Reads that take seconds: answered when they are done, the session goes on meanwhile."""


async def slow_result(host: Controlled, call: Call) -> Any:
    """The result of a method in `SLOW_READS`, or an `RpcError`; never raises."""
    try:
        return await SLOW_READS[call.method.name](host, call.params)
    except OperatorError as error:
        return refusal(error)
    except Exception as error:
        log.exception("%s failed", call.method.name)
        return _broken(call, error)


def refusal(error: OperatorError) -> RpcError:
    """An operator's error on the wire, in the kind that its exit code stands for."""
    code = {
        EXIT_INVALID: ErrorCode.INVALID_PARAMS,
        EXIT_REFUSED: ErrorCode.CONFLICT,
        EXIT_TIMED_OUT: ErrorCode.UNKNOWN_OUTCOME,
    }
    return rpc_error(code.get(error.exit_code, ErrorCode.FAILED), error.fact, error.remedy)


def _broken(call: Call, error: Exception) -> RpcError:
    fact = f"{call.method.name} failed inside the host: {type(error).__name__}"
    return rpc_error(ErrorCode.INTERNAL, fact, "see the host's own log for the trace")


def answer_read(host: Controlled, call: Call) -> bytes:
    """The reply frame of a method in `READS`."""
    try:
        return encode_reply(call.request, READS[call.method.name](host, call.params))
    except OperatorError as error:
        return encode_reply(call.request, refusal(error))
    except Exception as error:
        log.exception("%s failed", call.method.name)
        return encode_reply(call.request, _broken(call, error))


def encode_reply(request: Request, result: Any) -> bytes:
    if isinstance(result, RpcError):
        return encode_error(request.id, result)
    frame = encode_result(request.id, result)
    if len(frame) <= MAX_FRAME_BYTES:
        return frame
    error = rpc_error(ErrorCode.INTERNAL, f"the reply to {request.method} exceeds a frame", "ask for less at a time")
    return encode_error(request.id, error)
