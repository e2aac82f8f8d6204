"""The JSON schema of a profile, for editors and CI, generated from the same definitions that the checks use.

    python -m engine_host.profiles.schema > profiles/schema.json

vLLM's arguments are listed with the type that the pinned release takes. Names it does not list are allowed: only the
installed vLLM knows all of them, and an editor that cried wolf at a newer one would be switched off.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import msgspec

from engine_host.profiles.arguments import Argument, Kind, catalogue
from engine_host.profiles.shape import (
    DESCRIPTION_CHARS,
    NOT_YET_APPLIED,
    OWN_TABLES,
    SCHEMA,
    TABLE_TEXTS,
    TABLES,
    TOP_KEYS,
)

_TYPES: dict[Kind, list[str]] = {
    "flag": ["boolean"],
    "int": ["integer", "string"],
    "float": ["number"],
    "text": ["string", "number", "boolean"],
    "json": ["object", "array", "string"],
    "text_or_json": ["object", "string"],
}
"""TOML's types that mean something for a kind. A whole number may be a text: "32k"."""


def profile_schema() -> dict[str, Any]:
    tables = {name: _table(name) for name in TABLES}
    top: dict[str, dict[str, Any]] = {
        "schema": {"const": SCHEMA},
        "description": {"type": "string", "maxLength": DESCRIPTION_CHARS},
        "extends": {"type": "string", "minLength": 1},
        "unset": {"type": "array", "items": {"type": "string"}},
    }
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "vllm-console profile",
        "description": f"One deployment of vLLM. Argument names are those of vLLM {catalogue().vllm_version}.",
        "type": "object",
        "required": ["schema"],
        "additionalProperties": False,
        "properties": {name: {**top[name], "description": TOP_KEYS[name]} for name in TOP_KEYS} | tables,
    }


def _table(name: str) -> dict[str, Any]:
    table: dict[str, Any] = {"type": "object", "description": TABLE_TEXTS[name]}
    if shape := OWN_TABLES.get(name):
        components = msgspec.json.schema_components([shape], ref_template="{name}")[1]
        return table | {"additionalProperties": False, "properties": _own(components, shape.__name__)}
    if name in NOT_YET_APPLIED:
        return table | {"additionalProperties": False}
    known = catalogue()
    return table | {"properties": {key: _value(key, known.by_name[key]) for key in sorted(known.names(name))}}


def _own(components: dict[str, dict[str, Any]], name: str) -> dict[str, Any]:
    """The properties of a table of the host's own, tables inside it spelt out."""
    properties: dict[str, Any] = {}
    for key, value in components[name]["properties"].items():
        # A described reference is wrapped in anyOf, a bare one stands alone.
        forms = (value, *value.get("anyOf", ()), *value.get("allOf", ()))
        inner = next((form["$ref"] for form in forms if "$ref" in form), None)
        properties[key] = value
        if inner is not None:
            table = {"type": "object", "additionalProperties": False, "properties": _own(components, inner)}
            properties[key] = table | ({"description": value["description"]} if "description" in value else {})
    return properties


def _value(name: str, argument: Argument) -> dict[str, Any]:
    if argument.is_list:
        item = {"type": _TYPES[argument.kind]}
        return {"anyOf": [item, {"type": "array", "items": item}]}
    types = [*_TYPES[argument.kind]]
    schema: dict[str, Any] = {"type": types if len(types) > 1 else types[0]}
    if inner := catalogue().nested.get(name):
        schema["properties"] = {
            key: {"type": _TYPES[kind]} if kind not in ("json", "text") else {} for key, kind in sorted(inner.items())
        }
    return schema


def as_text() -> str:
    return json.dumps(profile_schema(), indent=1) + "\n"


if __name__ == "__main__":
    sys.stdout.write(as_text())
