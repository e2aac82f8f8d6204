"""Imports of vLLM's `--config` YAML: dashes or underscores, texts or mappings, and what YAML itself makes of values."""

from __future__ import annotations

import json
from typing import Any

import pytest

from engine_host.profiles.imported import Imported
from engine_host.profiles.importer import import_text

NGRAM = {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4}


def from_yaml(body: str) -> Imported:
    return import_text(f"model: org/m\n{body}\n")


def yaml_engine(body: str) -> dict[str, Any]:
    table = from_yaml(body).tables["engine"]
    assert table.pop("model") == "org/m"
    return table


ORDERS = [
    "speculative_model: z\nspeculative-config: {method: draft_model}",
    "speculative-config: {method: draft_model}\nspeculative_model: z",
    "speculative-config.model: z\nspeculative-config: {method: draft_model}",
]


@pytest.mark.parametrize("body", ORDERS)
def test_a_mapping_and_an_older_name_for_a_key_of_it_are_one_mapping(body: str) -> None:
    found = from_yaml(body)
    assert found.tables["engine"]["speculative_config"] == {"method": "draft_model", "model": "z"}
    assert not any("more than once" in said for said in found.notices)


@pytest.mark.parametrize(
    ("body", "model"),
    [
        ("speculative_model: z\nspeculative-config: {model: y}", "y"),
        ("speculative-config: {model: y}\nspeculative_model: z", "z"),
    ],
)
def test_the_later_of_two_values_for_one_key_of_a_mapping_counts_and_is_told(body: str, model: str) -> None:
    found = from_yaml(body)
    assert found.tables["engine"]["speculative_config"] == {"model": model}
    assert "speculative_config.model: given more than once; the last one counts" in found.notices


@pytest.mark.parametrize(
    ("body", "key"),
    [
        ("seed: 1\nseed: 2", "seed"),
        ("speculative-config:\n  method: ngram\n  method: suffix", "speculative-config.method"),
        ("hf-overrides: {a: [{b: 1, b: {c: 2}}]}", "hf-overrides.a.b"),
    ],
)
def test_a_key_that_yaml_has_twice_is_told(body: str, key: str) -> None:
    assert from_yaml(body).notices == [f"{key}: given more than once; the last one counts"]


def test_a_key_laid_over_a_merged_one_or_given_twice_alike_is_no_loss() -> None:
    merged = from_yaml("hf-overrides: {a: &base {c: 1}, b: {<<: *base, c: 2}}\nseed: 1\nseed: 1")
    assert merged.notices == []
    assert merged.tables["engine"]["hf_overrides"] == {"a": {"c": 1}, "b": {"c": 2}}


def test_dashes_in_keys_that_are_not_vllms_stay() -> None:
    assert yaml_engine("hf-overrides: {some-key: 1}") == {"hf_overrides": {"some-key": 1}}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("max-model-len: 8192", {"max_model_len": 8192}),
        ("max_model_len: 8192", {"max_model_len": 8192}),
        ("--max-model-len: 8192", {"max_model_len": 8192}),
        ("max-model-len: 8k", {"max_model_len": 8000}),
        ("max-model-len: '8192'", {"max_model_len": 8192}),
        ("enforce-eager: true", {"enforce_eager": True}),
        ("enable-prefix-caching: false", {"enable_prefix_caching": False}),
        ("enable_prefix_caching: false", {"enable_prefix_caching": False}),
        ("no-enable-prefix-caching: true", {"enable_prefix_caching": False}),
        ("no_enable_prefix_caching: true", {"enable_prefix_caching": False}),
        ("no-enable-prefix-caching: false", {}),
        ("enforce-eager: 'true'", {"enforce_eager": True}),
        ("quantization: null", {}),
        ("quantization:", {}),
        ("revision: null", {}),
        ("served-model-name: a", {"served_model_name": ["a"]}),
        ("served-model-name: [a, b]", {"served_model_name": ["a", "b"]}),
        ("kv-cache-dtype-skip-layers: []", {}),
        ("revision: 1234", {"revision": "1234"}),
        ("gpu-memory-utilization: 1", {"gpu_memory_utilization": 1.0}),
        (f"speculative-config: '{json.dumps(NGRAM)}'", {"speculative_config": NGRAM}),
        (f"speculative_config: {json.dumps(NGRAM)}", {"speculative_config": NGRAM}),
        ("speculative-config:\n  method: ngram\n  model: null", {"speculative_config": {"method": "ngram"}}),
        ("speculative-config.method: ngram", {"speculative_config": {"method": "ngram"}}),
        (
            "speculative_config.num_speculative_tokens: 5\nspeculative_config.method: ngram",
            {"speculative_config": {"method": "ngram", "num_speculative_tokens": 5}},
        ),
        ("compilation-config:\n  pass_config: {a: true}", {"compilation_config": {"pass_config": {"a": True}}}),
        ("swap-space: 16", {"kv_offloading_size": 16.0}),
        ("speculative_model: org/d", {"speculative_config": {"model": "org/d"}}),
        ("VLLM_SCHEDULER_POLICY: priority", {"scheduling_policy": "priority"}),
        ("disable-log-requests: true", {}),
        ("load-format: yes", {}),
    ],
)
def test_the_ways_to_write_yaml(body: str, expected: dict[str, Any]) -> None:
    assert yaml_engine(body) == expected


@pytest.mark.parametrize(
    ("body", "notice"),
    [
        ("enable_prefix_caching: false", "vLLM drops a false"),
        ("quantization: null", "not set (null)"),
        ("no-enable-prefix-caching: false", "left out"),
        ("kv-cache-dtype-skip-layers: []", "an empty list"),
        ("load-format: yes", "YAML reads yes and no as that"),
        ("speculative-config: {method: ngram, model: null}", "model is not set (null)"),
        ("swap-space: 16", "kv_offloading_size"),
        ("VLLM_SCHEDULER_POLICY: priority", "is the argument scheduling_policy today"),
        ("max-num-seq: 1", 'did you mean "max_num_seqs"?'),
    ],
)
def test_what_yaml_would_have_lost_is_told(body: str, notice: str) -> None:
    assert any(notice in said for said in from_yaml(body).notices)


def test_dashes_and_json_and_mappings_mean_the_same() -> None:
    dashed = from_yaml("max-num-seqs: 8\nspeculative-config:\n  method: ngram\n  num_speculative_tokens: 5")
    underscored = from_yaml(
        """speculative_config: '{"num_speculative_tokens": 5, "method": "ngram"}'\nmax_num_seqs: "8" """
    )
    assert dashed.content() == underscored.content()
