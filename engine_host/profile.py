"""Profile files: one TOML document each, read into a typed, frozen `Profile`, or refused with what to mend.

Read, then resolve, then build: `read_document` gives the tables as they stand in the file, `build_profile` makes the
effective values. (Inheritance belongs between the two and needs no change in either.)

This module knows no engine. Which keys `[engine]` and `[server]` may have is told by the installed vLLM through the
adapter, and checked by `check_keys`.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import msgspec

from engine_host.engine.port import EngineArguments
from engine_host.nearest import nearest, suggestion
from engine_host.protocol.errors import OperatorError

SCHEMA = 1

TABLES = ("engine", "server", "dials", "throttle", "alerts", "switch")

NOT_YET_APPLIED = ("dials", "throttle", "alerts")
"""Tables that may stand in a profile and take no keys in this version: a limit that is accepted and then not applied
is worse than one that is refused."""

MAX_PROFILE_BYTES = 1 << 20
"""No profile is this long; a log file or a model given by mistake is."""

DIGEST_CHARS = 12

_PATHS = (("model",), ("tokenizer",), ("speculative_config", "model"))
"""Keys of `[engine]` that may hold a path on this machine: `~` and variables are expanded there and nowhere else."""


class Switch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[switch]`: how the engine is left."""

    drain_timeout_s: Annotated[float, msgspec.Meta(ge=0.0, le=86_400.0)] = 30.0
    """How long running requests may take to finish before the engine stops."""


@dataclass(frozen=True)
class Profile:
    """One profile's effective values: defaults filled in, paths expanded. Treat the tables as read-only."""

    name: str
    """The file's name without `.toml`."""
    path: Path
    digest: str
    """Of the effective values: two files that mean the same have the same one."""
    engine: Mapping[str, Any]
    server: Mapping[str, Any] = field(default_factory=dict)
    dials: Mapping[str, Any] = field(default_factory=dict)
    throttle: Mapping[str, Any] = field(default_factory=dict)
    alerts: Mapping[str, Any] = field(default_factory=dict)
    switch: Switch = field(default_factory=Switch)

    @property
    def model(self) -> str:
        model = self.engine["model"]
        assert isinstance(model, str)
        return model

    def to_arguments(self) -> EngineArguments:
        """What an engine is started with; a copy that the engine may change."""
        return EngineArguments(engine=_copy(self.engine), server=_copy(self.server))


@dataclass(frozen=True)
class ValidNames:
    """The argument names of the installed vLLM."""

    engine: Collection[str]
    server: Collection[str]
    nested: Mapping[str, Collection[str]] = field(default_factory=dict)
    """Key of `[engine]` -> the keys of the table it holds (`speculative_config`)."""


def find_profile(argument: str, profiles_dir: Path) -> Path:
    """The file that PROFILE means: a path if it looks like one, else a name in `profiles_dir`.

    Raises `OperatorError` with the nearest names there are.
    """
    if "/" in argument or argument.endswith(".toml"):
        path = Path(_expand_home(argument))
        if path.exists() or path.parent != Path():
            return path  # a path that does not exist is told by `read_document`
        in_directory = profiles_dir / argument
        return in_directory if in_directory.exists() else path
    path = profiles_dir / f"{argument}.toml"
    if path.exists():
        return path
    names = sorted(found.stem for found in profiles_dir.glob("*.toml")) if profiles_dir.is_dir() else []
    if not names:
        raise OperatorError(
            f'no profile "{argument}": there are no profiles in {profiles_dir}',
            "give the path of a profile file, or --profiles-dir DIRECTORY",
        )
    raise OperatorError(f'no profile "{argument}" in {profiles_dir}', suggestion(argument, names))


def load_profile(path: Path) -> Profile:
    """Read and build the profile at `path`; vLLM's own keys are not checked yet. Raises `OperatorError`."""
    return build_profile(read_document(path), path)


def read_document(path: Path) -> dict[str, Any]:
    """The file's tables with nothing but the TOML syntax checked. Raises `OperatorError`."""
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise OperatorError(f"{path} is a directory, expected a profile file", f"see: ls {path}/*.toml")
        with path.open("rb") as file:
            content = file.read(MAX_PROFILE_BYTES + 1)
    except FileNotFoundError:
        raise OperatorError(f"no profile file {path}", _neighbours(path)) from None
    except PermissionError:
        raise OperatorError(f"the profile {path} may not be read by this user", f"see: ls -l {path}") from None
    except (OSError, ValueError) as error:
        raise OperatorError(f"the profile {path} cannot be read: {error}", f"see: ls -l {path}") from None
    if len(content) > MAX_PROFILE_BYTES:
        raise OperatorError(f"{path} is over {MAX_PROFILE_BYTES} bytes, no profile", "give the path of a profile file")
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


def build_profile(document: Mapping[str, Any], path: Path) -> Profile:
    """Effective values from the tables of a file, everything checked that needs no vLLM. Raises `OperatorError`."""
    _check_top_level(document, path)
    tables: dict[str, dict[str, Any]] = {name: _copy(document.get(name, {})) for name in TABLES}
    switch = _build_switch(tables["switch"], path)
    engine = tables["engine"]
    _check_model(engine, path)
    for keys in _PATHS:
        _expand(engine, keys, path)
    effective = {**tables, "switch": msgspec.to_builtins(switch)}
    return Profile(
        name=path.stem,
        path=path,
        digest=digest_of(effective),
        engine=engine,
        server=tables["server"],
        dials=tables["dials"],
        throttle=tables["throttle"],
        alerts=tables["alerts"],
        switch=switch,
    )


def digest_of(effective: Mapping[str, Any]) -> str:
    """The same for equal values, whatever the order of their keys."""
    return hashlib.sha256(msgspec.json.encode(effective, order="deterministic")).hexdigest()[:DIGEST_CHARS]


def check_keys(profile: Profile, valid: ValidNames) -> None:
    """Refuse every key that the installed vLLM does not have. Raises one `OperatorError` that names them all."""
    unknown = [(f"engine.{key}", key, valid.engine) for key in profile.engine if key not in valid.engine]
    unknown += [(f"server.{key}", key, valid.server) for key in profile.server if key not in valid.server]
    for table, names in valid.nested.items():
        inner = profile.engine.get(table, {})
        if not isinstance(inner, Mapping):
            raise OperatorError(
                f"{profile.path}: engine.{table} is {_type_name(inner)}, expected a table",
                f"write it as a table: [engine.{table}]",
            )
        unknown += [(f"engine.{table}.{key}", key, names) for key in inner if key not in names]
    if unknown:
        paths = ", ".join(path for path, _, _ in unknown)
        hints = [f"{path}: {_hint(key, names)}" for path, key, names in unknown]
        raise OperatorError(f"{profile.path}: unknown key {paths}", "\n  ".join(hints))


def _hint(key: str, names: Collection[str]) -> str:
    match = nearest(key, names)
    return f'did you mean "{match}"?' if match else "the installed vLLM has no such argument; remove it"


def _check_top_level(document: Mapping[str, Any], path: Path) -> None:
    if "schema" not in document:
        raise OperatorError(f'{path} has no "schema" key', f"put this at the top of the file: schema = {SCHEMA}")
    schema = document["schema"]
    if type(schema) is not int or schema != SCHEMA:
        raise OperatorError(f"{path}: schema is {schema!r}, this version reads {SCHEMA}", f"write: schema = {SCHEMA}")
    for key, value in document.items():
        if key == "schema":
            continue
        if key not in TABLES:
            what = f"table [{key}]" if isinstance(value, dict) else f'key "{key}"'
            raise OperatorError(f"{path}: unknown {what}", suggestion(key, ("schema", *TABLES)))
        if not isinstance(value, dict):
            raise OperatorError(f"{path}: {key} is {_type_name(value)}, expected a table", f"write it as: [{key}]")
        if key in NOT_YET_APPLIED and value:
            raise OperatorError(
                f"{path}: unknown key {key}.{next(iter(value))}", f"[{key}] takes no keys in this version"
            )


def _build_switch(table: dict[str, Any], path: Path) -> Switch:
    valid = Switch.__struct_fields__
    for key in table:
        if key not in valid:
            raise OperatorError(f"{path}: unknown key switch.{key}", suggestion(key, valid))
    for key, value in table.items():
        try:
            msgspec.convert({key: value}, Switch)
        except msgspec.ValidationError as error:
            fact = f"{path}: switch.{key} = {value!r}: {str(error).split(' - at ')[0]}"
            raise OperatorError(fact, f"mend switch.{key}, or leave it out for its default") from None
    return msgspec.convert(table, Switch)


def _check_model(engine: Mapping[str, Any], path: Path) -> None:
    if "model" not in engine:
        raise OperatorError(
            f"{path}: engine.model is missing", 'name a model: [engine] model = "org/name" or a directory'
        )
    model = engine["model"]
    if not isinstance(model, str) or not model.strip():
        raise OperatorError(
            f"{path}: engine.model is {model!r}, expected a name or a path", 'write: model = "org/name"'
        )


def _expand(engine: dict[str, Any], keys: tuple[str, ...], path: Path) -> None:
    """Expand `~` and variables at `keys`, and refuse a path on this machine where nothing is."""
    table: Any = engine
    for key in keys[:-1]:
        table = table.get(key)
        if not isinstance(table, dict):
            return
    written = table.get(keys[-1])
    if not isinstance(written, str):
        return
    where = "engine." + ".".join(keys)
    value = _expand_home(os.path.expandvars(written))
    if missing := re.search(r"\$(\w+|\{[^}]*\})", value):
        raise OperatorError(
            f"{path}: {where} = {written!r} needs the environment variable {missing[1].strip('{}')}, which is not set",
            f"export {missing[1].strip('{}')}=..., then start again",
        )
    table[keys[-1]] = value
    if value.startswith(("/", ".", "~")) and not Path(value).exists():
        shown = value if value == written else f"{value} (from {written})"
        raise OperatorError(f"{path}: {where}: {shown} does not exist", _neighbours(Path(value)))


def _expand_home(text: str) -> str:
    # Not Path.expanduser: that would also tidy the text, and "./model" without its "./" is the name of a repository.
    return os.path.expanduser(text)  # noqa: PTH111


def _neighbours(path: Path) -> str:
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


def _copy(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _copy(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_copy(item) for item in value]
    return value


def _type_name(value: Any) -> str:
    names = {bool: "true or false", int: "a number", float: "a number", str: "a text", list: "a list", dict: "a table"}
    return names.get(type(value), "a " + type(value).__name__)
