"""What a profile may contain, said once: the checks, the JSON schema and the importer all read it here.

Only shape: which tables there are and the keys that are the host's own. The keys of `[engine]` and `[server]` are
vLLM's and differ by release; `keys` checks them against the installed one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from engine_host.profiles.throttle_table import Throttle

SCHEMA = 1

TABLES = ("engine", "server", "dials", "throttle", "alerts", "switch")

TOP_KEYS = {
    "schema": "The version of this format.",
    "description": "What the profile is for, in one line; shown in lists. Not inherited.",
    "extends": "The name of a profile beside this file whose values this one starts from.",
    "unset": 'Dotted keys that are not taken over from the profile that is extended: ["engine.speculative_config"].',
}
"""Keys that stand before the tables."""

TABLE_TEXTS = {
    "engine": "vLLM engine arguments by vLLM's own underscore names. The installed vLLM decides which there are.",
    "server": "vLLM front-end arguments by vLLM's own underscore names. The installed vLLM decides which there are.",
    "dials": "Limits of the running scheduler, set before the engine serves; `vllm-console dial` changes them live.",
    "throttle": "What the gate lets through from the start; `vllm-console throttle` changes it live.",
    "alerts": "Takes no keys in this version.",
    "switch": "How the engine is left, and how another profile is switched to.",
}

NOT_YET_APPLIED = ("alerts",)
"""Tables that may stand in a profile and take no keys in this version: a rule that is accepted and then not applied
is worse than one that is refused."""

DESCRIPTION_CHARS = 200
"""A description is a line of a list, not a page."""

SECRETS = frozenset({"server.api_key", "engine.hf_token", "throttle.api_key_classes"})
"""Values that are shown to nobody: whoever may look at a host through its socket need not know its clients' keys."""

WHOLE = frozenset({"throttle.api_key_classes"})
"""Mappings that are one value: their keys are an operator's own words and no names of settings."""

HIDDEN = "(hidden)"


def spoken(key: str) -> str:
    """A dotted key as it may be told: one inside a secret mapping is a secret itself."""
    return next((f"{secret}.{HIDDEN}" for secret in SECRETS if key.startswith(f"{secret}.")), key)


class Switch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[switch]`: how the engine is left, and how another profile is switched to."""

    drain_timeout_s: Annotated[
        float,
        msgspec.Meta(
            ge=0.0,
            le=86_400.0,
            description="How long requests that cannot be carried over may take to finish before the engine stops.",
        ),
    ] = 30.0
    start_deadline_s: Annotated[
        float,
        msgspec.Meta(
            gt=0.0,
            le=86_400.0,
            description="A start that takes longer counts as failed, and the former profile is brought back.",
        ),
    ] = 600.0
    hold_deadline_s: Annotated[
        float,
        msgspec.Meta(
            ge=0.0,
            le=86_400.0,
            description="How long a request that arrives during a switch waits at the gate before it is refused.",
        ),
    ] = 600.0
    standby: Annotated[
        bool,
        msgspec.Meta(
            description="Keep this engine resident and asleep when another profile is switched to (GPU, sleep mode)."
        ),
    ] = False


class Dials(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[dials]`: where the scheduler's limits stand at first. What each takes at most, the engine decides."""

    max_active_seqs: (
        Annotated[
            int,
            msgspec.Meta(ge=1, description="Requests admitted to run at once; at most the engine's max_num_seqs."),
        ]
        | msgspec.UnsetType
    ) = msgspec.UNSET
    max_scheduled_tokens: (
        Annotated[
            int,
            msgspec.Meta(
                ge=1,
                description="Prompt and generated tokens of one step; at most the engine's max_num_batched_tokens.",
            ),
        ]
        | msgspec.UnsetType
    ) = msgspec.UNSET
    speculative_tokens: (
        Annotated[
            int,
            msgspec.Meta(
                ge=0,
                description="Tokens drafted a request and step, 0 for none; at most the engine's "
                "num_speculative_tokens.",
            ),
        ]
        | msgspec.UnsetType
    ) = msgspec.UNSET


OWN_TABLES: dict[str, type[msgspec.Struct]] = {"switch": Switch, "dials": Dials, "throttle": Throttle}
"""Tables whose keys are the host's own, and what they take."""


def leaves(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The values of a table by dotted key: `{"engine.speculative_config.method": "ngram"}`. Lists are values,
    and so are an empty mapping and those of `WHOLE`."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        path = f"{prefix}.{key}" if prefix else key
        if isinstance(value, dict) and (value or not prefix) and path not in WHOLE:
            flat.update(leaves(value, path))
        else:
            flat[path] = value
    return flat


def copied(value: Any) -> Any:
    """A deep copy of tables and lists."""
    if isinstance(value, dict):
        return {key: copied(item) for key, item in value.items()}
    if isinstance(value, list):
        return [copied(item) for item in value]
    return value


def written(value: Any) -> str:
    """A value as whoever reads the file knows it."""
    return str(value).lower() if isinstance(value, bool) else repr(value)


def type_name(value: Any) -> str:
    names = {bool: "true or false", int: "a number", float: "a number", str: "a text", list: "a list", dict: "a table"}
    return names.get(type(value), "a " + type(value).__name__)
