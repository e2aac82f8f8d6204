"""From a frame to a request with typed parameters, or to the error that tells the caller what was wrong with it.

Frames come from anyone who can reach the socket: nothing a frame contains may raise out of here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from engine_host.decoder_words import in_words
from engine_host.nearest import suggestion
from engine_host.protocol.envelope import ErrorCode, Id, Request, RpcError
from engine_host.protocol.methods import METHODS, Method

MAX_ID_CHARS = 128
"""An id is echoed in the reply: it may not be a way to make the host hold and send a megabyte."""

_SHOWN_CHARS = 60
_KINDS = {list: "a list", str: "a text", int: "a number", float: "a number", bool: "true or false"}
"""What may stand where an object should."""
_request = msgspec.json.Decoder(Request)
_params = {method.name: msgspec.json.Decoder(method.params) for method in METHODS.values()}
_UNREADABLE = (msgspec.DecodeError, RecursionError, UnicodeError)


@dataclass(frozen=True)
class Refused:
    """A frame that is no valid request; `id` is `None` where the caller's could not be read."""

    id: Id | None
    error: RpcError


def rpc_error(code: ErrorCode, fact: str, remedy: str, **data: Any) -> RpcError:
    return RpcError(code=int(code), message=fact, data={"remedy": remedy, **data})


def parse_request(frame: bytes) -> Request | Refused:
    """Read the envelope; the method is not looked up and the parameters stay undecoded."""
    try:
        request = _request.decode(frame)
    except _UNREADABLE as error:
        return _diagnose(frame, error)
    if request.jsonrpc != "2.0":
        fact = f'jsonrpc is "{_shown(request.jsonrpc)}", expected "2.0"'
        return _invalid(_usable_id(request.id), fact, 'send "jsonrpc": "2.0"')
    if request.id is not None and _usable_id(request.id) is None:
        return _invalid(None, "the request's id is too large", f"use a 64-bit integer or {MAX_ID_CHARS} characters")
    return request


def find_method(request: Request) -> Method | Refused:
    if method := METHODS.get(request.method):
        return method
    fact = f'no method "{_shown(request.method)}"'
    return Refused(request.id, rpc_error(ErrorCode.UNKNOWN_METHOD, fact, suggestion(request.method, METHODS)))


def decode_params(request: Request, method: Method) -> Any:
    """The method's parameters as its declared struct, or `Refused`."""
    try:
        return _params[method.name].decode(request.params)
    except _UNREADABLE as error:
        names = method.params.__struct_fields__
        remedy = f"it takes: {', '.join(names)}" if names else "it takes no parameters"
        fact = f"invalid parameters for {method.name}: {_shown(in_words(error), 200)}"
        return Refused(request.id, rpc_error(ErrorCode.INVALID_PARAMS, fact, remedy))


def _diagnose(frame: bytes, error: Exception) -> Refused:
    """Tell broken JSON from JSON that is no request, and find the id to answer under."""
    try:
        value = msgspec.json.decode(frame)
    except _UNREADABLE as broken:
        reason = "it is nested too deeply" if isinstance(broken, RecursionError) else _shown(in_words(broken), 200)
        return Refused(None, rpc_error(ErrorCode.PARSE, f"the frame is not JSON: {reason}", "send one object a line"))
    if not isinstance(value, dict):
        fact = f"a request is an object, not {_KINDS.get(type(value), 'null')}"
        return _invalid(None, fact, "send one request a line; there are no batches")
    return _invalid(
        _usable_id(value.get("id")),
        f"not a request: {_shown(in_words(error), 200)}",
        'send {"jsonrpc": "2.0", "id": 1, "method": "status"}',
    )


def _invalid(id: Id | None, fact: str, remedy: str) -> Refused:
    return Refused(id, rpc_error(ErrorCode.INVALID_REQUEST, fact, remedy))


def _usable_id(id: Any) -> Id | None:
    if isinstance(id, str):
        return id if len(id) <= MAX_ID_CHARS else None
    if isinstance(id, int) and not isinstance(id, bool):
        return id if -(1 << 63) <= id < 1 << 63 else None
    return None


def _shown(text: str, limit: int = _SHOWN_CHARS) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
