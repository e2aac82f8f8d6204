"""Any value that JSON can carry for a wire type: what a host could send, not what a good one does."""

from __future__ import annotations

import types
import typing
from typing import Any

import msgspec
from hypothesis import strategies as st

LEAVES: dict[Any, st.SearchStrategy[Any]] = {
    float: st.floats(allow_nan=False, allow_infinity=False),
    int: st.integers(-(2**53), 2**53),
    str: st.text(max_size=40) | st.sampled_from(["10s", "1m", "5m", "hung", "stuck"]),
    bool: st.booleans(),
    type(None): st.none(),
    Any: st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=200)
    | st.dictionaries(st.text(max_size=8), st.text()),
}


def anything(kind: Any) -> st.SearchStrategy[Any]:
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        parts = {field.name: anything(field.type) for field in msgspec.structs.fields(kind)}
        return st.fixed_dictionaries(parts).map(lambda values: kind(**values))
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in {types.UnionType, typing.Union}:
        return st.one_of([anything(argument) for argument in arguments])
    if origin is list:
        return st.lists(anything(arguments[0]), max_size=3)
    if origin is tuple:
        return st.tuples(*(anything(argument) for argument in arguments))
    if origin is typing.Annotated:
        return anything(arguments[0])
    if origin is dict:
        return st.dictionaries(anything(arguments[0]), anything(arguments[1]), max_size=3)
    return LEAVES.get(kind) if kind in LEAVES else st.from_type(kind)
