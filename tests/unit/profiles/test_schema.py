"""The JSON schema beside the profiles: current, and of one mind with the checks."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from engine_host.profiles import build_profile
from engine_host.profiles.schema import as_text, profile_schema
from engine_host.protocol.errors import OperatorError

jsonschema = pytest.importorskip("jsonschema")

PROFILES = Path(__file__).parents[3] / "profiles"


def is_valid(content: dict[str, Any]) -> bool:
    return bool(jsonschema.Draft7Validator(profile_schema()).is_valid(content))


def test_the_file_is_current() -> None:
    remedy = "write it anew: python -m engine_host.profiles.schema > profiles/schema.json"
    assert (PROFILES / "schema.json").read_text() == as_text(), remedy


def test_the_schema_is_one() -> None:
    jsonschema.Draft7Validator.check_schema(json.loads(as_text()))


@pytest.mark.parametrize("path", sorted(PROFILES.glob("*.toml")), ids=lambda path: path.stem)
def test_every_shipped_profile_fits_and_names_the_schema(path: Path) -> None:
    text = path.read_text()
    jsonschema.validate(tomllib.loads(text), profile_schema())
    assert text.startswith("#:schema schema.json\n")


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"description": "x"},
        {"switch": {"drain_timeout_s": 3, "standby": True}},
        {"engine": {"model": "m", "max_model_len": "32k", "served_model_name": ["a"]}},
        {"engine": {"model": "m", "an_argument_of_a_newer_vllm": 3}},
        {"throttle": {}},
        {"throttle": {"max_inflight": 3, "classes": ["a", "b"], "auto": {"mode": "on", "kv_enter": 0.95}}},
    ],
)
def test_what_the_checks_take_the_schema_takes(change: dict[str, Any]) -> None:
    content = {"schema": 1, "engine": {"model": "m"}, **change}
    build_profile(content, Path("p.toml"))
    assert is_valid(content)


@pytest.mark.parametrize(
    "change",
    [
        {"schema": 2},
        {"throtle": {}},
        {"description": 3},
        {"extends": ""},
        {"unset": [3]},
        {"switch": {"drain_timeout": 3}},
        {"switch": {"drain_timeout_s": -1}},
        {"switch": {"standby": "yes"}},
        {"throttle": {"max_inflight": 0}},
        {"throttle": {"max_inflght": 3}},
        {"throttle": {"auto": {"mode": "maybe"}}},
        {"throttle": {"auto": {"kv_entr": 0.9}}},
        {"throttle": {"auto": 3}},
        {"alerts": {"kv": 3}},
        {"engine": 3},
    ],
)
def test_what_the_checks_refuse_the_schema_refuses(change: dict[str, Any]) -> None:
    content = {"schema": 1, "engine": {"model": "m"}, **change}
    with pytest.raises(OperatorError):
        build_profile(content, Path("p.toml"))
    assert not is_valid(content)


def test_a_value_of_the_wrong_kind_is_marked_in_the_editor() -> None:
    assert not is_valid({"schema": 1, "engine": {"model": "m", "enforce_eager": "yes"}})
    assert not is_valid({"schema": 1, "engine": {"model": "m", "max_num_seqs": 1.5}})
