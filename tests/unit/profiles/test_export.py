"""Exports, and the round trip: what an import reads of an export means the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, reject
from hypothesis import strategies as st

from engine_host.profiles import Profile, ProfileDirectory, build_profile, digest_of
from engine_host.profiles.arguments import Argument, Kind, catalogue
from engine_host.profiles.exporter import to_command_line, to_yaml
from engine_host.profiles.importer import import_text
from engine_host.protocol.errors import OperatorError

SHIPPED = ProfileDirectory(Path(__file__).parents[3] / "profiles")


def profile(engine: dict[str, Any] | None = None, **tables: Any) -> Profile:
    return build_profile({"schema": 1, "engine": {"model": "org/m", **(engine or {})}, **tables}, Path("p.toml"))


def back(text: str) -> Profile:
    found = import_text(text)
    assert [said for said in found.notices if "secret" not in said] == []
    return build_profile(found.content(), Path("back.toml"))


def test_a_command_line_has_an_option_a_line_and_comments_for_what_is_ours() -> None:
    exported = to_command_line(
        profile(
            {"max_num_seqs": 8, "enable_prefix_caching": False, "enforce_eager": True, "served_model_name": ["a", "b"]},
            server={"port": 9000},
            switch={"drain_timeout_s": 5},
        )
    )
    assert exported == (
        "# vllm-console: switch.drain_timeout_s = 5.0\n"
        "vllm serve org/m \\\n  --max-num-seqs 8 \\\n  --no-enable-prefix-caching \\\n  --enforce-eager \\\n"
        "  --served-model-name a b \\\n  --port 9000\n"
    )


def test_mappings_are_written_as_json_in_quotes() -> None:
    exported = to_command_line(profile({"speculative_config": {"method": "ngram", "num_speculative_tokens": 5}}))
    assert """--speculative-config '{"method": "ngram", "num_speculative_tokens": 5}'""" in exported


def test_yaml_has_dashes_so_that_a_false_counts() -> None:
    content = yaml.safe_load(to_yaml(profile({"enable_prefix_caching": False})))
    assert content == {"model": "org/m", "enable-prefix-caching": False}


def test_a_list_that_vllm_reads_as_json_is_json_in_yaml() -> None:
    content = yaml.safe_load(to_yaml(profile(server={"allowed_origins": ["*"], "middleware": ["a.b"]})))
    assert content["allowed-origins"] == '["*"]'
    assert content["middleware"] == ["a.b"]


def test_a_switch_that_can_only_be_turned_on_is_left_out_when_off() -> None:
    off, absent = profile({"disable_log_stats": False}), profile()
    assert off.digest == absent.digest
    assert to_command_line(off) == to_command_line(absent)


def test_no_null_is_written() -> None:
    for text in (to_yaml(profile()), to_command_line(profile())):
        assert "null" not in text and "None" not in text


@pytest.mark.parametrize("value", [["-a", "b"], []])
def test_a_list_that_vllm_cannot_be_told_is_refused(value: list[str]) -> None:
    for export in (to_command_line, to_yaml):
        with pytest.raises(OperatorError, match="cannot be said to") as caught:
            export(profile({"served_model_name": value}))
        assert caught.value.remedy


def test_yaml_cannot_hold_what_a_command_line_repeats() -> None:
    two = profile(server={"middleware": ["a.b", "c.d"]})
    assert back(to_command_line(two)).digest == two.digest
    with pytest.raises(OperatorError, match="more than one middleware") as caught:
        to_yaml(two)
    assert "--format command" in caught.value.remedy


def test_yaml_cannot_hold_a_text_that_looks_like_an_option() -> None:
    with pytest.raises(OperatorError, match="revision"):
        to_yaml(profile({"revision": "-x"}))


def test_values_that_look_like_options_or_words_of_the_shell_survive() -> None:
    odd = profile({"download_dir": "a b'c\"d $HOME; #", "load_format": "", "max_model_len": -1})
    assert back(to_command_line(odd)).digest == odd.digest
    dashed = profile({"revision": "-x"})
    assert back(to_command_line(dashed)).digest == dashed.digest
    assert back(to_yaml(odd)).digest == odd.digest


@pytest.mark.parametrize("name", SHIPPED.files())
def test_every_shipped_profile_comes_back_the_same(name: str) -> None:
    shipped = SHIPPED.load(name)
    assert back(to_command_line(shipped)).digest == shipped.digest
    assert back(to_yaml(shipped)).digest == shipped.digest


plain_text = st.text(
    st.characters(codec="utf-8", exclude_categories=("Cc", "Cs", "Zl", "Zp")), min_size=1, max_size=12
).filter(lambda text: text not in ("None", "null") and text.lstrip()[:1] not in ("{", "["))
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 50), 1 << 50) | st.floats(-1e6, 1e6) | plain_text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(plain_text, inner, max_size=3),
    max_leaves=5,
)
values: dict[Kind, st.SearchStrategy[Any]] = {
    "flag": st.booleans(),
    "int": st.integers(-1, 1 << 40),
    "float": st.floats(0, 1e6) | st.integers(0, 100),
    "text": plain_text,
    "json": st.dictionaries(plain_text, json_values.filter(lambda value: value is not None), min_size=1, max_size=3),
    "text_or_json": plain_text
    | st.dictionaries(plain_text, json_values.filter(lambda value: value is not None), min_size=1, max_size=3),
}


def value_of(argument: Argument) -> st.SearchStrategy[Any]:
    one = values[argument.kind]
    if not argument.is_list:
        return one
    items = one.filter(lambda item: not str(item).startswith("-"))
    return st.lists(items, min_size=1, max_size=3) | items


ARGUMENTS = {
    name: argument
    for name, argument in catalogue().by_name.items()
    if argument.table is not None and name not in ("model", "speculative_config")
}


@st.composite
def any_profile(draw: st.DrawFn) -> Profile:
    tables: dict[str, dict[str, Any]] = {"engine": {"model": draw(st.sampled_from(["org/m", "./a b", "~/m", "$M/x"]))}}
    for name in draw(st.lists(st.sampled_from(sorted(ARGUMENTS)), max_size=6, unique=True)):
        argument = ARGUMENTS[name]
        tables.setdefault(str(argument.table), {})[name] = draw(value_of(argument))
    if draw(st.booleans()):
        tables["engine"]["speculative_config"] = draw(
            st.fixed_dictionaries(
                {"num_speculative_tokens": st.integers(1, 9)},
                optional={"method": plain_text, "synthetic_acceptance_length": st.floats(1, 9) | st.integers(1, 9)},
            )
        )
    if draw(st.booleans()):
        tables["switch"] = draw(
            st.fixed_dictionaries({}, optional={"drain_timeout_s": st.floats(0, 99), "standby": st.booleans()})
        )
    return build_profile({"schema": 1, **tables}, Path("p.toml"))


@given(original=any_profile())
def test_any_profile_comes_back_the_same_from_a_command_line(original: Profile) -> None:
    returned = back(to_command_line(original))
    assert returned.digest == original.digest


def yaml_of(original: Profile) -> str:
    try:
        return to_yaml(original)
    except OperatorError:
        reject()  # one of the few that vLLM's YAML cannot hold


@given(original=any_profile())
def test_any_profile_comes_back_the_same_from_yaml(original: Profile) -> None:
    assert back(yaml_of(original)).digest == original.digest


@given(original=any_profile())
def test_a_profile_imported_into_a_file_is_the_same_profile(original: Profile) -> None:
    import tomllib

    text = import_text(yaml_of(original)).toml()
    assert build_profile(tomllib.loads(text), Path("p.toml")).digest == original.digest


def test_a_digest_sees_every_difference_of_meaning() -> None:
    assert profile({"seed": 1}).digest != profile({"seed": 2}).digest
    assert digest_of({"engine": {"a": 1}}) != digest_of({"server": {"a": 1}})
