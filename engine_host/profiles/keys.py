"""The keys of `[engine]` and `[server]` against the names that a vLLM takes, told all at once with the nearest ones."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from engine_host.nearest import nearest
from engine_host.profiles.profile import Profile
from engine_host.profiles.shape import type_name
from engine_host.protocol.errors import OperatorError


@dataclass(frozen=True)
class ValidNames:
    """The argument names of the installed vLLM."""

    engine: Collection[str]
    server: Collection[str]
    nested: Mapping[str, Collection[str]] = field(default_factory=dict)
    """Key of `[engine]` -> the keys of the table it holds (`speculative_config`)."""


@dataclass(frozen=True)
class UnknownKey:
    key: str
    """Dotted."""
    path: Path
    """The file that has it."""
    nearest: str | None


def unknown_keys(profile: Profile, valid: ValidNames) -> list[UnknownKey]:
    """Every key that is none of `valid`, in the order of the profile."""
    found: list[UnknownKey] = []

    def look(prefix: str, table: Mapping[str, object], names: Collection[str]) -> None:
        for key in table:
            if key not in names:
                where = f"{prefix}.{key}"
                found.append(UnknownKey(where, profile.origin(where), nearest(key, names)))

    look("engine", profile.engine, valid.engine)
    look("server", profile.server, valid.server)
    for key, names in valid.nested.items():
        if isinstance(inner := profile.engine.get(key), Mapping):
            look(f"engine.{key}", inner, names)
    return found


def check_keys(profile: Profile, valid: ValidNames) -> None:
    """Refuse every key that the installed vLLM does not have. Raises one `OperatorError` that names them all."""
    for table in valid.nested:
        inner = profile.engine.get(table, {})
        if not isinstance(inner, Mapping):
            where = f"engine.{table}"
            raise OperatorError(
                f"{profile.origin(where)}: {where} is {type_name(inner)}, expected a table",
                f"write it as a table: [{where}]",
            )
    if not (unknown := unknown_keys(profile, valid)):
        return
    by_file: dict[Path, list[str]] = {}
    for one in unknown:
        by_file.setdefault(one.path, []).append(one.key)
    fact = "; ".join(f"{path}: unknown key {', '.join(keys)}" for path, keys in by_file.items())
    raise OperatorError(fact, "\n  ".join(f"{one.key}: {_hint(one)}" for one in unknown))


def _hint(one: UnknownKey) -> str:
    return f'did you mean "{one.nearest}"?' if one.nearest else "the installed vLLM has no such argument; remove it"
