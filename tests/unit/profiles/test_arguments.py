"""The arguments of the pinned vLLM as data, and the one form that equal meanings get."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_host.profiles.arguments import catalogue, is_idle, one_form, whole_number


@pytest.mark.parametrize(
    ("written", "formed"),
    [
        ({"speculative_config": '{"method": "ngram"}'}, {"speculative_config": {"method": "ngram"}}),
        ({"speculative_config": "ngram"}, {"speculative_config": "ngram"}),
        ({"speculative_config": "{broken"}, {"speculative_config": "{broken"}),
        (
            {"speculative_config": {"synthetic_acceptance_length": 3, "unknown": 3}},
            {"speculative_config": {"synthetic_acceptance_length": 3.0, "unknown": 3}},
        ),
        ({"hf_overrides": '{"a": 1}'}, {"hf_overrides": {"a": 1}}),
        ({"hf_overrides": "a.function"}, {"hf_overrides": "a.function"}),
        ({"served_model_name": "a"}, {"served_model_name": ["a"]}),
        ({"served_model_name": ["a"]}, {"served_model_name": ["a"]}),
        ({"max_model_len": "32k"}, {"max_model_len": 32_000}),
        ({"max_model_len": "long"}, {"max_model_len": "long"}),
        ({"gpu_memory_utilization": 1}, {"gpu_memory_utilization": 1.0}),
        ({"optimization_level": "3"}, {"optimization_level": 3}),
        ({"revision": 3}, {"revision": 3}),
        ({"enforce_eager": True}, {"enforce_eager": True}),
        ({"model": 3}, {"model": 3}),
        ({"not_an_argument": {"a": [1]}}, {"not_an_argument": {"a": [1]}}),
    ],
)
def test_equal_meanings_get_one_form(written: dict[str, Any], formed: dict[str, Any]) -> None:
    assert one_form(written) == formed
    assert repr(one_form(written)) == repr(formed)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("8192", 8192),
        (" 8 ", 8),
        ("8k", 8000),
        ("8K", 8192),
        ("1.5m", 1_500_000),
        ("2G", 2 << 30),
        ("-1", -1),
        ("auto", -1),
        ("1.5K", None),
        ("8kb", None),
        ("", None),
        ("٣", None),
        ("9" * 40, None),
    ],
)
def test_numbers_for_people(text: str, number: int | None) -> None:
    assert whole_number(text) == number


def test_only_a_switch_without_an_off_is_idle_when_off() -> None:
    assert is_idle("disable_log_stats", False)
    assert not is_idle("disable_log_stats", True)
    assert not is_idle("enable_prefix_caching", False)
    assert not is_idle("not_an_argument", False)


def test_the_catalogue_knows_both_tables() -> None:
    known = catalogue()
    assert {"model", "max_num_seqs", "speculative_config"} <= set(known.names("engine"))
    assert {"host", "port", "api_key"} <= set(known.names("server"))
    assert "method" in known.nested["speculative_config"]
    assert known.by_option["-tp"] == "tensor_parallel_size"


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@given(table=st.dictionaries(st.sampled_from(sorted(catalogue().by_name)), anything, max_size=3))
def test_the_one_form_is_the_form_of_itself(table: dict[str, Any]) -> None:
    once = one_form(table)
    assert repr(one_form(once)) == repr(once)
