"""The JSON-RPC 2.0 envelope of the control socket and its error codes."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import msgspec

Id = int | str


class ErrorCode(IntEnum):
    """JSON-RPC's own codes, and ours from -32001 down."""

    PARSE = -32700
    INVALID_REQUEST = -32600
    UNKNOWN_METHOD = -32601
    INVALID_PARAMS = -32602
    INTERNAL = -32603
    ROLE = -32001
    """The peer's role does not cover the method's risk."""
    CONFLICT = -32002
    """Not in this state, a stale `expected_state_version`, or another action is under way."""
    FAILED = -32003
    """The action was tried and did not work."""
    FRAME_TOO_LARGE = -32004
    AUDIT = -32005
    """The audit log cannot be written, so no changing action is taken."""
    BUSY = -32006
    """Too many sessions, subscriptions or requests in flight."""
    UNKNOWN_OUTCOME = -32007
    """The action was begun and nobody told in time what became of it."""


class RpcError(msgspec.Struct, frozen=True):
    code: int
    message: str
    """The fact."""
    data: dict[str, Any] = {}
    """`remedy`: what to do next, always there. `state`, `state_version`: with a CONFLICT."""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    method: str
    params: msgspec.Raw = msgspec.Raw(b"{}")
    id: Id | None = None
    """Absent in a notification, which gets no answer."""
    jsonrpc: str = "2.0"


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """What a client receives: a response (`id`, and `result` or `error`) or a notification (`method`, `params`)."""

    id: Id | None = None
    result: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    error: RpcError | None = None
    method: str | None = None
    params: msgspec.Raw = msgspec.Raw(b"{}")
    jsonrpc: str = "2.0"


_encoder = msgspec.json.Encoder()


def encode_request(id: Id, method: str, params: Any) -> bytes:
    return _encoder.encode({"jsonrpc": "2.0", "id": id, "method": method, "params": params}) + b"\n"


def encode_result(id: Id | None, result: Any) -> bytes:
    return _encoder.encode({"jsonrpc": "2.0", "id": id, "result": result}) + b"\n"


def encode_error(id: Id | None, error: RpcError) -> bytes:
    return _encoder.encode({"jsonrpc": "2.0", "id": id, "error": error}) + b"\n"


def encode_notification(method: str, params: Any) -> bytes:
    return _encoder.encode({"jsonrpc": "2.0", "method": method, "params": params}) + b"\n"
