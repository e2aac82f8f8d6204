"""A profile's effective values, typed and frozen; read, inherited, built, or refused with what to mend.

Nothing here looks at vLLM or at the models: a profile means the same on a laptop as on the host. Which keys `[engine]`
and `[server]` may have is checked by `keys`, whether the files are there by `check_files`.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec

from engine_host.decoder_words import fault
from engine_host.nearest import suggestion
from engine_host.profiles.arguments import is_idle
from engine_host.profiles.document import checked_document, neighbours, read_document
from engine_host.profiles.faults import Faults
from engine_host.profiles.inherit import Inherited, inherited
from engine_host.profiles.shape import HIDDEN, OWN_TABLES, SECRETS, Switch, copied, leaves, type_name, written
from engine_host.profiles.throttle_check import contradictions
from engine_host.profiles.throttle_table import Throttle
from engine_host.protocol.errors import OperatorError

DIGEST_CHARS = 12

PATH_KEYS = (("model",), ("tokenizer",), ("speculative_config", "model"))
"""Keys of `[engine]` that may hold a path on this machine: `~` and variables are expanded there and nowhere else."""


@dataclass(frozen=True)
class EngineArguments:
    """What an engine is started with: a profile's tables, shape-checked."""

    engine: dict[str, Any]
    """vLLM engine arguments by vLLM's own underscore names."""
    server: dict[str, Any] = field(default_factory=dict)
    """vLLM front-end arguments."""


@dataclass(frozen=True)
class Profile:
    """One profile's effective values: inherited, defaults filled in, paths expanded. Treat the tables as read-only."""

    name: str
    """The file's name without `.toml`."""
    path: Path
    digest: str
    """Of the effective values: two files that mean the same have the same one."""
    engine: Mapping[str, Any]
    server: Mapping[str, Any] = field(default_factory=dict)
    dials: Mapping[str, int] = field(default_factory=dict)
    """Those of `[dials]` alone that are named: the engine decides the others."""
    throttle: Throttle = field(default_factory=Throttle)
    alerts: Mapping[str, Any] = field(default_factory=dict)
    switch: Switch = field(default_factory=Switch)
    description: str = ""
    lineage: tuple[Path, ...] = ()
    """This file and what it extends, nearest first."""
    origins: Mapping[str, Path] = field(default_factory=dict)
    """Dotted key -> the file that gave it its value."""

    @property
    def model(self) -> str:
        model = self.engine["model"]
        assert isinstance(model, str)
        return model

    @property
    def served_name(self) -> str:
        """The name that the model is served under: the first of `served_model_name`, else the last part of its path."""
        served = self.engine.get("served_model_name")
        name = served[0] if isinstance(served, list) and served else served
        return str(name or self.model).rstrip("/").rsplit("/", 1)[-1]

    @property
    def names_asked_for(self) -> tuple[str, ...]:
        """What clients may give as `model`: every one of `served_model_name`, else the model as it is written."""
        served = self.engine.get("served_model_name") or self.model
        return tuple(map(str, served)) if isinstance(served, list) else (str(served),)

    def to_arguments(self) -> EngineArguments:
        """What an engine is started with; a copy that the engine may change."""
        return EngineArguments(engine=copied(self.engine), server=copied(self.server))

    def effective(self) -> dict[str, dict[str, Any]]:
        """Every table with everything inherited and filled in; a copy."""
        return {
            "engine": copied(self.engine),
            "server": copied(self.server),
            "dials": copied(self.dials),
            "throttle": msgspec.to_builtins(self.throttle),
            "alerts": copied(self.alerts),
            "switch": msgspec.to_builtins(self.switch),
        }

    def shown(self) -> dict[str, dict[str, Any]]:
        """`effective` without its secrets, for everybody's eyes."""
        tables = self.effective()
        for secret in SECRETS:
            table, key = secret.split(".")
            if tables[table].get(key):
                tables[table][key] = HIDDEN
        return tables

    @property
    def holds_secrets(self) -> bool:
        tables = self.effective()
        return any(tables[table].get(key) for table, key in (secret.split(".") for secret in SECRETS))

    def origin(self, key: str) -> Path:
        """The file that gives `key` its value; the profile's own where nothing does."""
        return self.origins.get(key, self.path)


def load_profile(path: Path) -> Profile:
    """Read, inherit and build the profile at `path`. Neither vLLM's keys nor the files it names are checked yet.

    Raises `OperatorError`.
    """
    return build_profile(read_document(path), path)


def build_profile(content: Mapping[str, Any], path: Path) -> Profile:
    """Effective values from the content of a file; bases are read beside `path`. Raises `OperatorError`."""
    faults = Faults(path)
    document = checked_document(content, path, faults)
    is_sound = not faults  # what a faulty file leaves out may be what is missed below
    found = Inherited({}, ())
    with faults.caught():
        found = inherited(document)
        for name, shape in OWN_TABLES.items():
            _check_own(name, shape, found.tables[name], found, path, faults)
        _check_throttle(found, path, faults)
        if is_sound:
            _check_model(found.tables["engine"], found.origins.get("engine.model", path))
    faults.tell()
    switch = msgspec.convert(found.tables["switch"], Switch)
    throttle = msgspec.convert(found.tables["throttle"], Throttle)
    engine = found.tables["engine"]
    for keys in PATH_KEYS:
        _expand(engine, keys)
    return Profile(
        name=path.stem,
        path=path,
        digest=digest_of(
            {**found.tables, "switch": msgspec.to_builtins(switch), "throttle": msgspec.to_builtins(throttle)}
        ),
        engine=engine,
        server=found.tables["server"],
        dials=found.tables["dials"],
        throttle=throttle,
        alerts=found.tables["alerts"],
        switch=switch,
        description=document.description,
        lineage=found.lineage,
        origins=found.origins,
    )


def digest_of(effective: Mapping[str, Any]) -> str:
    """The same for equal meanings, whatever the order of their keys. The description and the name do not count."""
    meant = {
        name: {key: value for key, value in table.items() if not is_idle(key, value)}
        if isinstance(table, dict)
        else table
        for name, table in effective.items()
    }
    return hashlib.sha256(msgspec.json.encode(meant, order="deterministic")).hexdigest()[:DIGEST_CHARS]


def check_files(profile: Profile) -> None:
    """Refuse variables that are not set and paths on this machine where nothing is. Raises `OperatorError`."""
    for keys in PATH_KEYS:
        value: Any = profile.engine
        for key in keys:
            value = value.get(key) if isinstance(value, Mapping) else None
        if not isinstance(value, str):
            continue
        where = "engine." + ".".join(keys)
        path = profile.origin(where)
        if unset := unset_variable(value):
            fact, remedy = unset
            raise OperatorError(f"{path}: {where} = {value!r} {fact}", remedy)
        if names_a_path(value) and not Path(value).exists():
            raise OperatorError(f"{path}: {where}: {value} does not exist", neighbours(Path(value)))


def unset_variable(expanded: str) -> tuple[str, str] | None:
    """What is wrong with a variable that is still in `expanded`, and what to do; `None` when there is none in it."""
    if not (left := re.search(r"\$(\w+|\{[^}]*\})", expanded)):
        return None
    name = left[1].strip("{}")
    if not name.isidentifier():
        return f"holds {left[0]}, and a profile knows no defaults of the shell", "write the value itself, or $NAME"
    return f"needs the environment variable {name}, which is not set", f"export {name}=... where engine-host is started"


def names_a_path(model: str) -> bool:
    """Whether a model is a directory of this machine, and not the name of a repository."""
    return model.startswith(("/", ".", "~"))


def expand_home(text: str) -> str:
    # Not Path.expanduser: that would also tidy the text, and "./model" without its "./" is the name of a repository.
    return os.path.expanduser(text)  # noqa: PTH111


def _check_own(
    name: str, shape: type[msgspec.Struct], table: Mapping[str, Any], found: Inherited, path: Path, faults: Faults
) -> None:
    """Refuse keys of a table of the host's own that it does not take, and values."""
    valid = {field.name: field for field in msgspec.structs.fields(shape)}
    for key, value in table.items():
        where = found.origins.get(f"{name}.{key}", path)
        with faults.caught():
            if key not in valid:
                raise OperatorError(f"{where}: unknown key {name}.{key}", suggestion(key, valid))
            default = valid[key].default
            if isinstance(default, msgspec.Struct):
                if not isinstance(value, Mapping):
                    fact = f"{where}: {name}.{key} is {type_name(value)}, expected a table"
                    raise OperatorError(fact, f"write it as: [{name}.{key}]")
                _check_own(f"{name}.{key}", type(default), value, found, path, faults)
                continue
            try:
                msgspec.convert({key: value}, shape)
            except msgspec.ValidationError as error:
                said = HIDDEN if f"{name}.{key}" in SECRETS else written(value)
                fact = f"{where}: {name}.{key} = {said}: {fault(error)}"
                words = _words(valid[key].type)
                remedy = suggestion(str(value), words, in_order=True) if words else f"mend {name}.{key}"
                otherwise = " Or" if remedy.endswith("?") else ", or"
                raise OperatorError(fact, f"{remedy}{otherwise} leave it out for its default") from None


def _words(kind: Any) -> list[str]:
    """What a key takes whose values are a few words, in the order in which they are written."""
    kind = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    return [str(value) for value in get_args(kind)] if get_origin(kind) is Literal else []


def _check_throttle(found: Inherited, path: Path, faults: Faults) -> None:
    """Refuse what contradicts itself; a table with a fault in it has been refused."""
    try:
        throttle = msgspec.convert(found.tables["throttle"], Throttle)
    except msgspec.ValidationError:
        return
    for one in contradictions(throttle, leaves(found.tables["throttle"])):
        key = f"throttle.{one.key}"
        with faults.caught():
            raise OperatorError(f"{found.origins.get(key, path)}: {key}: {one.fact}", one.remedy)


def _check_model(engine: Mapping[str, Any], path: Path) -> None:
    if "model" not in engine:
        raise OperatorError(
            f"{path}: engine.model is missing", 'name a model: [engine] model = "org/name" or a directory'
        )
    model = engine["model"]
    if not isinstance(model, str) or not model.strip():
        raise OperatorError(
            f"{path}: engine.model is {written(model)}, expected a name or a path", 'write: model = "org/name"'
        )


def _expand(engine: dict[str, Any], keys: tuple[str, ...]) -> None:
    table: Any = engine
    for key in keys[:-1]:
        table = table.get(key)
        if not isinstance(table, dict):
            return
    written = table.get(keys[-1])
    if isinstance(written, str):
        table[keys[-1]] = expand_home(os.path.expandvars(written))
