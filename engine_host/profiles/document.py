"""One profile file, as it stands: read, and its top level checked.

Nothing is inherited or filled in here. What is refused is refused with the file, the key and what to write instead.
"""

from __future__ import annotations

import codecs
import datetime
import math
import stat
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine_host.nearest import nearest, suggestion
from engine_host.profiles.faults import Faults
from engine_host.profiles.shape import (
    DESCRIPTION_CHARS,
    NOT_YET_APPLIED,
    SCHEMA,
    TABLES,
    TOP_KEYS,
    copied,
    spoken,
    type_name,
)
from engine_host.protocol.errors import OperatorError

MAX_PROFILE_BYTES = 1 << 20
"""No profile is this long; a log file or a model given by mistake is."""


@dataclass(frozen=True)
class Document:
    """A file's own words."""

    path: Path
    tables: dict[str, dict[str, Any]]
    """Every table of `TABLES`, empty where the file has none."""
    extends: str | None = None
    unset: tuple[str, ...] = ()
    description: str = ""


def read_document(path: Path) -> dict[str, Any]:
    """The file's tables with nothing but the TOML syntax checked. Raises `OperatorError`."""
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise OperatorError(f"{path} is a directory, expected a profile file", f"see: ls {path}/*.toml")
        with path.open("rb") as file:
            content = file.read(MAX_PROFILE_BYTES + 1)
    except FileNotFoundError:
        raise OperatorError(f"no profile file {path}", neighbours(path)) from None
    except PermissionError:
        raise OperatorError(f"the profile {path} may not be read by this user", f"see: ls -l {path}") from None
    except (OSError, ValueError) as error:
        raise OperatorError(f"the profile {path} cannot be read: {error}", f"see: ls -l {path}") from None
    if len(content) > MAX_PROFILE_BYTES:
        raise OperatorError(f"{path} is over {MAX_PROFILE_BYTES} bytes, no profile", "give the path of a profile file")
    content = content.removeprefix(codecs.BOM_UTF8)  # as some editors begin a file
    try:
        return tomllib.loads(content.decode())
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise OperatorError(
            f"{path} is not UTF-8: byte {content[error.start]:#04x} in line {line}", "save it as UTF-8"
        ) from None
    except tomllib.TOMLDecodeError as error:
        raise OperatorError(f"{path} is not TOML: {error}", "mend that line; strings need quotes") from None
    except RecursionError:
        raise OperatorError(f"{path} is not a profile: nested too deeply", "give the path of a profile file") from None


def checked_document(content: Mapping[str, Any], path: Path, into: Faults | None = None) -> Document:
    """The top level of a file: its version, its own keys, its tables.

    Raises `OperatorError`; with `into` only for another version, and all else that is wrong is put there and left out
    of the document.
    """
    if "schema" not in content:
        raise OperatorError(f'{path} has no "schema" key', f"put this at the top of the file: schema = {SCHEMA}")
    schema = content["schema"]
    if type(schema) is not int or schema != SCHEMA:
        raise OperatorError(f"{path}: schema is {schema!r}, this version reads {SCHEMA}", f"write: schema = {SCHEMA}")
    faults = into if into is not None else Faults(path)
    tables: dict[str, dict[str, Any]] = {name: {} for name in TABLES}
    for key, value in content.items():
        if key in TOP_KEYS:
            continue
        with faults.caught():
            _check_table(key, value, path)
            for name, item in value.items():
                with faults.caught():
                    _check_value(f"{key}.{name}", item, path)
                    tables[key][name] = copied(item)
    extends: str | None = None
    unset: tuple[str, ...] = ()
    description = ""
    with faults.caught():
        extends = _extends(content.get("extends"), path)
        unset = _unset(content.get("unset", []), extends, path)
    with faults.caught():
        description = _description(content.get("description", ""), path)
    if into is None:
        faults.tell()
    return Document(path=path, tables=tables, extends=extends, unset=unset, description=description)


def _check_table(key: str, value: Any, path: Path) -> None:
    if key not in TABLES:
        what = f"table [{key}]" if isinstance(value, dict) else f'key "{key}"'
        raise OperatorError(f"{path}: unknown {what}", suggestion(key, (*TOP_KEYS, *TABLES)))
    if not isinstance(value, dict):
        raise OperatorError(f"{path}: {key} is {type_name(value)}, expected a table", f"write it as: [{key}]")
    if key in NOT_YET_APPLIED and value:
        raise OperatorError(f"{path}: unknown key {key}.{next(iter(value))}", f"[{key}] takes no keys in this version")


def _check_value(key: str, value: Any, path: Path) -> None:
    """Refuse what TOML (or YAML, on the way of an import) can say and no argument of vLLM can be."""
    match value:
        case datetime.date() | datetime.time():
            raise OperatorError(f"{path}: {key} = {value} is a date or time", f'put it in quotes: "{value}"')
        case float() if not math.isfinite(value):
            raise OperatorError(f"{path}: {key} = {value} is no finite number", "write a number")
        case int() if not -(1 << 63) <= value < 1 << 63:
            raise OperatorError(f"{path}: {key} has a number of more than 64 bits", "write a smaller number")
        case Mapping():
            for name, item in value.items():
                _check_value(spoken(f"{key}.{name}"), item, path)
        case list():
            for item in value:
                _check_value(key, item, path)
        case None | str() | int() | float():
            pass
        case _:
            raise OperatorError(f"{path}: {key} is {type_name(value)}", "write a text, a number, a list or a table")


def _extends(value: Any, path: Path) -> str | None:
    if value is None:
        return None
    if (
        not isinstance(value, str)
        or not value.strip()
        or "/" in value
        or not value.isprintable()
        or value[0] == "."
        or len(value) > 200
    ):
        raise OperatorError(
            f"{path}: extends is {value!r}, expected the name of a profile beside this file",
            'write: extends = "name", for the file name.toml in the same directory',
        )
    return value.removesuffix(".toml")


def _unset(value: Any, extends: str | None, path: Path) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(key, str) for key in value):
        raise OperatorError(
            f"{path}: unset is {value!r}, expected a list of dotted keys",
            'write: unset = ["engine.speculative_config"]',
        )
    if value and extends is None:
        raise OperatorError(
            f"{path}: unset has nothing to act on, as the profile extends none", "remove unset, or name a base: extends"
        )
    return tuple(value)


def _description(value: Any, path: Path) -> str:
    if not isinstance(value, str):
        raise OperatorError(
            f"{path}: description is {type_name(value)}, expected a line of text", 'write: description = "..."'
        )
    line = value.strip()
    if len(line) > DESCRIPTION_CHARS or not line.isprintable():
        raise OperatorError(
            f"{path}: description is not one line of at most {DESCRIPTION_CHARS} characters",
            "say it in a line; comments may be as long as they like",
        )
    return line


def neighbours(path: Path) -> str:
    """Where to look for a path that does not exist: the closest name beside it, or the last directory that exists."""
    parent = path.parent
    while not parent.is_dir() and parent != parent.parent:
        parent = parent.parent
    try:
        names = [found.name for found in parent.iterdir()] if parent == path.parent else []
    except OSError:
        names = []
    match = nearest(path.name, names)
    return f"did you mean {parent / match}?" if match else f"see what is there: ls {parent}"
