"""What can be said of a profile without its host: on a laptop, in CI.

Unknown names are warnings here and errors on the host. This side knows the arguments of the pinned vLLM, the host has
the installed one, and only that one counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from engine_host.profiles.arguments import Kind, catalogue
from engine_host.profiles.keys import ValidNames, unknown_keys
from engine_host.profiles.profile import Profile
from engine_host.profiles.shape import type_name
from engine_host.protocol.events import Severity
from engine_host.protocol.profiles import Finding, Preflight

UNCHECKED = [
    "every key against the vLLM that is installed there",
    "that the models are there, and that the tokenizers of draft and target agree",
    "that weights and KV cache fit into the memory that is free, and the longest request into the KV cache",
    "that the port is free",
]
"""What only the host can check, in words."""

_WANTED: dict[Kind, tuple[tuple[type, ...], str]] = {
    "flag": ((bool,), "true or false"),
    "int": ((int,), "a whole number"),
    "float": ((float, int), "a number"),
    "text": ((str, bool), "a text"),
    "json": ((dict, list, str), "a table"),
    "text_or_json": ((dict, str), "a text or a table"),
}


def shape_check(profile: Profile) -> Preflight:
    """Read, inherited and built already; what may still be wrong are vLLM's own names and kinds."""
    return Preflight(
        profile=profile.name,
        digest=profile.digest,
        ok=True,
        findings=[*_names(profile), *_kinds(profile)],
        unchecked=UNCHECKED,
    )


def pinned_names() -> ValidNames:
    known = catalogue()
    return ValidNames(engine=known.names("engine"), server=known.names("server"), nested=known.nested)


def _names(profile: Profile) -> Iterator[Finding]:
    version = catalogue().vllm_version
    for unknown in unknown_keys(profile, pinned_names()):
        yield Finding(
            id="key.unknown",
            severity=Severity.WARNING,
            text=f"{unknown.path}: {unknown.key} is no argument of vLLM {version}",
            remedy=f'did you mean "{unknown.nearest}"?' if unknown.nearest else "check it on the host",
        )


def _kinds(profile: Profile) -> Iterator[Finding]:
    known = catalogue()
    for prefix, table in (("engine", profile.engine), ("server", profile.server)):
        for name, value in table.items():
            if not (argument := known.by_name.get(name)) or argument.takes == "maybe":
                continue
            for item in value if argument.is_list and isinstance(value, list) else [value]:
                yield from _kind(profile, f"{prefix}.{name}", item, argument.kind)
            if isinstance(value, Mapping):
                for key, item in value.items():
                    if kind := known.nested.get(name, {}).get(key):
                        yield from _kind(profile, f"{prefix}.{name}.{key}", item, kind)


def _kind(profile: Profile, key: str, value: Any, kind: Kind) -> Iterator[Finding]:
    types, wanted = _WANTED[kind]
    if isinstance(value, types) and (kind in ("flag", "text") or not isinstance(value, bool)):
        return
    yield Finding(
        id="key.kind",
        severity=Severity.WARNING,
        text=f"{profile.origin(key)}: {key} is {type_name(value)}, vLLM {catalogue().vllm_version} takes {wanted}",
        remedy=f"write {wanted}",
    )
