"""`extends`: a profile starts from the values of another one that lies beside it.

From the base upwards, one file at a time: what the file unsets is taken away, then its tables are laid over what is
there, key by key, nested tables as well. Where each value was written is remembered, so that a wrong key is told with
the file that has it and not with the one that inherited it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine_host.nearest import suggestion
from engine_host.profiles.arguments import one_form
from engine_host.profiles.document import Document, checked_document, read_document
from engine_host.profiles.shape import TABLES, copied, spoken
from engine_host.protocol.errors import OperatorError


@dataclass
class Inherited:
    tables: dict[str, dict[str, Any]]
    lineage: tuple[Path, ...]
    """The profile's own file and what it extends, nearest first."""
    origins: dict[str, Path] = field(default_factory=dict)
    """Dotted key -> the file that gave it its value."""


def inherited(document: Document) -> Inherited:
    """The values of `document` with everything it inherits. Raises `OperatorError`."""
    chain = _chain(document)
    result = Inherited({name: {} for name in TABLES}, tuple(link.path for link in chain))
    for link in reversed(chain):
        for key in link.unset:
            _unset(result, key, link.path)
        for name, table in link.tables.items():
            # One form before the merge: a base may write as JSON what its heir writes as a table.
            own = one_form(table) if name in ("engine", "server") else table
            _lay_over(result.tables[name], own, name, link.path, result.origins)
    return result


def _chain(document: Document) -> list[Document]:
    """The document and its bases, nearest first."""
    chain = [document]
    seen = {_identity(document.path)}
    while (name := chain[-1].extends) is not None:
        path = chain[-1].path.parent / f"{name}.toml"
        said = " -> ".join([*(link.path.stem for link in chain), name])
        if _identity(path) in seen:
            raise OperatorError(
                f"{chain[-1].path}: extends goes in a circle: {said}", "remove one of these extends; a base has none"
            )
        if not path.exists():
            beside = [found.stem for found in path.parent.glob("*.toml") if _identity(found) not in seen]
            raise OperatorError(
                f'{chain[-1].path}: extends "{name}", and there is no {path} ({said})', suggestion(name, beside)
            )
        seen.add(_identity(path))
        chain.append(checked_document(read_document(path), path))
    return chain


def _identity(path: Path) -> Path:
    """One for a file, whatever link it is reached by."""
    return path.resolve()


def _unset(result: Inherited, key: str, path: Path) -> None:
    *parents, last = key.split(".")
    table: Any = result.tables
    for parent in parents:
        table = table.get(parent) if isinstance(table, dict) else None
    if not parents or not isinstance(table, dict) or last not in table:
        told = [name for name in result.origins if spoken(name) == name]
        raise OperatorError(f"{path}: unset: {spoken(key)} is not inherited", suggestion(key, told))
    del table[last]
    for known in [known for known in result.origins if known == key or known.startswith(f"{key}.")]:
        del result.origins[known]


def _lay_over(below: dict[str, Any], own: dict[str, Any], prefix: str, path: Path, origins: dict[str, Path]) -> None:
    for key, value in own.items():
        where = f"{prefix}.{key}"
        if isinstance(value, dict) and isinstance(below.get(key), dict):
            _lay_over(below[key], value, where, path, origins)
        else:
            below[key] = copied(value)
            for known in [known for known in origins if known.startswith(f"{where}.")]:
                del origins[known]
            if isinstance(value, dict):
                _lay_over({}, value, where, path, origins)
        origins[where] = path
