"""What can be said of a profile without its host: on a laptop, in CI.

This side knows the arguments of the pinned vLLM; the host has the installed one, and only that one counts. So a name
that is unknown here is an error where one of the pinned vLLM's is close to it, which makes it a slip, or where it is
known to be gone; else it is a warning, as it may belong to another release.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from engine_host.profiles.arguments import Kind, catalogue
from engine_host.profiles.keys import ValidNames, unknown_keys
from engine_host.profiles.older_names import OLDER, OLDER_NESTED
from engine_host.profiles.profile import Profile
from engine_host.profiles.shape import type_name
from engine_host.profiles.windows import check_overlap
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
    findings = [*_names(profile), *_kinds(profile), *_about_windows(profile)]
    return Preflight(
        profile=profile.name,
        digest=profile.digest,
        ok=not any(found.severity is Severity.ERROR for found in findings),
        findings=findings,
        unchecked=UNCHECKED,
    )


def _about_windows(profile: Profile) -> list[Finding]:
    context = profile.engine.get("max_model_len")
    if not isinstance(context, int) or context <= 0:
        return []  # the model's own, or what fits: the host knows it
    return check_overlap(profile.throttle, context, f"max_model_len = {context}")


def pinned_names() -> ValidNames:
    known = catalogue()
    return ValidNames(engine=known.names("engine"), server=known.names("server"), nested=known.nested)


def _names(profile: Profile) -> Iterator[Finding]:
    version = catalogue().vllm_version
    for unknown in unknown_keys(profile, pinned_names()):
        became = _became(unknown.key)
        is_slip = became is not None or unknown.nearest is not None
        yield Finding(
            id="key.unknown",
            severity=Severity.ERROR if is_slip else Severity.WARNING,
            text=f"{unknown.path}: {unknown.key} is no argument of vLLM {version}",
            remedy=became or (f'did you mean "{unknown.nearest}"? Or, {_ELSEWHERE}' if is_slip else _ELSEWHERE),
        )


_ELSEWHERE = "if another release has it, only a host with that one can tell: --on-host"


def _became(key: str) -> str | None:
    """What a dotted key of an older release became; None for one that is not known as such."""
    _, name, *inner = key.split(".", 2)
    if inner:
        _, note = OLDER_NESTED.get(name, {}).get(inner[0], (None, None))
    else:
        note = OLDER[name].note if name in OLDER else None
    # The import's last word, which is of what it has done.
    return None if note is None else f"{(inner or [name])[0]}: {note.removesuffix('; left out')}"


@dataclass(frozen=True)
class WrongKind:
    """A value that the pinned vLLM's argument does not take."""

    key: str
    """Dotted."""
    value: Any
    kind: Kind

    @property
    def wanted(self) -> str:
        return _WANTED[self.kind][1]

    @property
    def is_text_for_a_flag(self) -> bool:
        return self.kind == "flag" and isinstance(self.value, str)


def wrong_kinds(profile: Profile) -> Iterator[WrongKind]:
    known = catalogue()
    for prefix, table in (("engine", profile.engine), ("server", profile.server)):
        for name, value in table.items():
            if not (argument := known.by_name.get(name)) or argument.takes == "maybe":
                continue
            items = value if argument.is_list and isinstance(value, list) else [value]
            found = [WrongKind(f"{prefix}.{name}", item, argument.kind) for item in items]
            if isinstance(value, Mapping):
                nested = known.nested.get(name, {})
                inner = {key: item for key, item in value.items() if key in nested}
                found += [WrongKind(f"{prefix}.{name}.{key}", item, nested[key]) for key, item in inner.items()]
            yield from (one for one in found if not _fits(one.value, one.kind))


def _fits(value: Any, kind: Kind) -> bool:
    types, _ = _WANTED[kind]
    return isinstance(value, types) and (kind in ("flag", "text") or not isinstance(value, bool))


def _kinds(profile: Profile) -> Iterator[Finding]:
    for wrong in wrong_kinds(profile):
        yield Finding(
            id="key.kind",
            severity=Severity.WARNING,
            text=f"{profile.origin(wrong.key)}: {wrong.key} is {type_name(wrong.value)}, vLLM "
            f"{catalogue().vllm_version} takes {wrong.wanted}",
            remedy=f"write {wrong.wanted}",
        )
