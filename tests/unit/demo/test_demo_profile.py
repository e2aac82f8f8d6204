"""The demo profile against what the demo and the model need."""

import tomllib
from pathlib import Path

import pytest

from engine_host.demo import model, place, run
from engine_host.profiles import load_profile

PROFILE = tomllib.loads(place.PROFILE.read_text())
ENGINE = PROFILE["engine"]

BLOCK_BYTES = ENGINE["block_size"] * 30 * 2 * 3 * 64 * 2
"""Tokens x layers x (K and V) x KV heads x head size x bfloat16, of SmolLM2-135M."""


def test_one_request_of_the_longest_length_fits_the_kv_cache() -> None:
    blocks = ENGINE["kv_cache_memory_bytes"] // BLOCK_BYTES
    assert blocks == 101
    assert blocks * ENGINE["block_size"] > ENGINE["max_model_len"]


def test_slots_do_not_run_out_before_blocks_do() -> None:
    assert ENGINE["max_num_seqs"] >= 2 * run.CONCURRENCY


def test_the_block_size_suits_attention_on_cpu() -> None:
    assert ENGINE["block_size"] % 32 == 0


def test_five_tokens_are_drafted_from_the_prompt() -> None:
    speculative = ENGINE["speculative_config"]
    assert speculative["method"] == "ngram"
    assert speculative["num_speculative_tokens"] == 5


def test_the_profile_is_used_as_it_is_where_the_cache_is_in_its_usual_place() -> None:
    assert f"{place.MODELS_IN_PROFILES}/{model.NAME}" == ENGINE["model"]
    assert place.profile_for(Path(ENGINE["model"]).expanduser()) == place.PROFILE


def test_another_cache_gets_copies_that_differ_in_the_models_alone(tmp_path: Path) -> None:
    models = tmp_path / 'a "quoted" place' / "models"
    (models / model.NAME).mkdir(parents=True)
    copy = place.profile_for(models / model.NAME)
    assert copy.name == place.PROFILE.name
    profile = tomllib.loads(copy.read_text())
    assert profile["engine"].pop("model") == str(models / model.NAME)
    assert profile["engine"] == {key: value for key, value in ENGINE.items() if key != "model"}
    draft = load_profile(copy.with_name("demo-draft.toml"))
    assert draft.model == str(models / model.NAME)
    assert draft.engine["speculative_config"]["model"] == str(models / model.DRAFT_NAME)
    assert "speculative_config" not in load_profile(copy.with_name("demo-plain.toml")).engine


def test_the_draft_leaves_as_many_tokens_of_kv_cache_as_the_demo_has() -> None:
    draft = load_profile(place.PROFILE.with_name("demo-draft.toml"))
    assert draft.engine["kv_cache_memory_bytes"] // (2 * BLOCK_BYTES) == 101


def test_the_drain_is_short_and_read_from_the_profile() -> None:
    assert place.drain_timeout_s(place.PROFILE) == pytest.approx(5)
