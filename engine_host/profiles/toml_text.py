"""Profiles written as TOML, which has no null: a value with one in it is written as JSON, which a profile may be."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import tomli_w


def as_toml(content: Mapping[str, Any]) -> str:
    """The text of a profile file with this content: keys, and tables one deep that hold arguments."""
    return tomli_w.dumps(
        {
            key: {name: _writable(item) for name, item in value.items()} if isinstance(value, Mapping) else value
            for key, value in content.items()
        }
    )


def _writable(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False) if _has_null(value) else value


def _has_null(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_has_null, value.values()))
    return any(map(_has_null, value)) if isinstance(value, list) else value is None
