"""What `vllm serve` takes, without vLLM: names, options and kinds of value, of the release this version is pinned to.

For reading and writing command lines, and for giving equal meanings one form. It does not decide whether a profile is
valid: the installed vLLM does, which may be another release.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Literal

import msgspec

from engine_host.profiles.shape import copied

Kind = Literal["flag", "int", "float", "text", "json", "text_or_json"]
Takes = Literal["none", "one", "maybe", "many", "append"]


class Argument(msgspec.Struct, frozen=True):
    table: Literal["engine", "server"] | None
    """Where it stands in a profile; `None` for what only `vllm serve` itself knows (`--headless`)."""
    flags: list[str]
    kind: Kind
    """`text_or_json`: a text, or a mapping written as JSON."""
    takes: Takes
    """Values after the option: none; one; one or none; one or more; one, and the option may be repeated."""
    optional: bool = False
    """"None" on the command line means not set."""

    @property
    def flag(self) -> str:
        return self.flags[0]

    @property
    def off_flag(self) -> str | None:
        """`--no-...`, where there is one."""
        return next((flag for flag in self.flags if flag.startswith("--no-")), None)

    @property
    def is_list(self) -> bool:
        return self.takes in ("many", "append")


@dataclass(frozen=True)
class Catalogue:
    vllm_version: str
    by_name: Mapping[str, Argument]
    nested: Mapping[str, Mapping[str, Kind]]
    """Key of `[engine]` -> the keys of the table it holds."""
    by_option: Mapping[str, str]
    """`--tensor-parallel-size`, `-tp` -> `tensor_parallel_size`."""

    def names(self, table: str) -> list[str]:
        return [name for name, argument in self.by_name.items() if argument.table == table]


class _File(msgspec.Struct, frozen=True):
    vllm_version: str
    arguments: dict[str, Argument]
    nested: dict[str, dict[str, Kind]]


@cache
def catalogue() -> Catalogue:
    """Written by `tools/vllm_arguments.py`."""
    content = resources.files("engine_host.profiles").joinpath("vllm_arguments.json").read_bytes()
    file = msgspec.json.decode(content, type=_File)
    options = {flag: name for name, argument in file.arguments.items() for flag in argument.flags}
    return Catalogue(file.vllm_version, file.arguments, file.nested, options)


def one_form(table: Mapping[str, Any]) -> dict[str, Any]:
    """The table of `[engine]` or `[server]` with every value in the form that vLLM's own parser would give it.

    A mapping written as JSON becomes a table, "32k" a number, 1 becomes 1.0 where a fraction is meant, and a single
    value a list where a list is meant. What does not fit is left as it is, for the check to refuse.
    """
    known = catalogue()
    formed = {}
    for name, value in table.items():
        argument = known.by_name.get(name)
        formed[name] = copied(value) if argument is None else _formed(value, argument)
        if isinstance(formed[name], dict) and (kinds := known.nested.get(name)):
            inner = formed[name]
            formed[name] = {key: _scalar(item, kinds[key]) if key in kinds else item for key, item in inner.items()}
    return formed


def is_idle(name: str, value: Any) -> bool:
    """A switch that can only be turned on, turned off: the same as not being there."""
    argument = catalogue().by_name.get(name)
    return value is False and argument is not None and argument.kind == "flag" and argument.off_flag is None


def whole_number(text: str) -> int | None:
    """vLLM's numbers for people: `32k` is 32,000 and `32K` is 32,768; "auto" is -1. `None` when it is no number."""
    text = text.strip()
    if text.lower() == "auto":
        return -1
    if match := re.fullmatch(r"(\d+)([KMGT])", text):
        return int(match[1]) << 10 * ("KMGT".index(match[2]) + 1)
    if match := re.fullmatch(r"(\d+(?:\.\d+)?)([kmgt])", text):
        return int(float(match[1]) * (1e3, 1e6, 1e9, 1e12)["kmgt".index(match[2])])
    return int(text) if re.fullmatch(r"[+-]?\d{1,18}", text, re.ASCII) else None


def mapping_or_list(text: str) -> Any:
    """The mapping or list that `text` is in JSON; the text itself when it is neither."""
    if text.lstrip()[:1] not in ("{", "["):
        return text
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return text


def _formed(value: Any, argument: Argument) -> Any:
    if argument.is_list:
        items = value if isinstance(value, list) else [value]
        return [_scalar(item, argument.kind) for item in items]
    return _scalar(value, argument.kind)


def _scalar(value: Any, kind: Kind) -> Any:
    match kind, value:
        case (("json" | "text_or_json"), str()):
            return mapping_or_list(value) if kind == "json" or value.lstrip()[:1] == "{" else value
        case "int", str():
            number = whole_number(value)
            return value if number is None else number
        case "float", int() if not isinstance(value, bool):
            return float(value)
        case _:
            return copied(value)
