"""What differs between two profiles, and the tier that each change needs."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine_host.profiles import Profile, build_profile, diff_profiles
from engine_host.profiles.diff import LISTENER_KEYS, tier_of
from engine_host.profiles.shape import HIDDEN
from engine_host.protocol.profiles import KeyChange, Tier


def profile(name: str = "p", **tables: object) -> Profile:
    engine = {"model": "org/name", **tables.pop("engine", {})}  # type: ignore[dict-item]
    return build_profile({"schema": 1, "engine": engine, **tables}, Path(f"{name}.toml"))


def test_equal_profiles_have_no_difference() -> None:
    diff = diff_profiles(profile("a"), profile("b"))
    assert (diff.before, diff.after, diff.tier, diff.changes) == ("a", "b", Tier.NONE, [])


def test_a_changed_an_added_and_a_removed_key_are_told_with_both_values() -> None:
    before = profile(engine={"max_num_seqs": 8, "seed": 1})
    after = profile(engine={"max_num_seqs": 9, "dtype": "auto"})
    assert diff_profiles(before, after).changes == [
        KeyChange(key="engine.dtype", before=None, after="auto", tier=Tier.OVERLAP),
        KeyChange(key="engine.max_num_seqs", before=8, after=9, tier=Tier.OVERLAP),
        KeyChange(key="engine.seed", before=1, after=None, tier=Tier.OVERLAP),
    ]


def test_nested_keys_are_compared_one_by_one() -> None:
    before = profile(engine={"speculative_config": {"method": "ngram", "num_speculative_tokens": 5}})
    after = profile(engine={"speculative_config": '{"num_speculative_tokens": 2, "method": "ngram"}'})
    assert [change.key for change in diff_profiles(before, after).changes] == [
        "engine.speculative_config.num_speculative_tokens"
    ]


def test_values_that_mean_the_same_do_not_differ() -> None:
    before = profile(engine={"served_model_name": "x", "gpu_memory_utilization": 1, "max_model_len": "32k"})
    after = profile(engine={"served_model_name": ["x"], "gpu_memory_utilization": 1.0, "max_model_len": 32_000})
    assert diff_profiles(before, after).changes == []


@pytest.mark.parametrize(
    ("key", "tier"),
    [
        ("dials.speculative_tokens", Tier.LIVE),
        ("throttle.max_inflight", Tier.LIVE),
        ("throttle.auto.enabled", Tier.LIVE),
        ("alerts.kv_usage", Tier.LIVE),
        ("switch.drain_timeout_s", Tier.LIVE),
        ("engine.max_num_seqs", Tier.OVERLAP),
        ("engine.speculative_config.method", Tier.OVERLAP),
        ("server.tool_call_parser", Tier.OVERLAP),
        ("server.api_key", Tier.OVERLAP),
        ("server.port", Tier.NONE),
        ("server.ssl_keyfile", Tier.NONE),
    ],
)
def test_every_key_has_its_tier(key: str, tier: Tier) -> None:
    assert tier_of(key) is tier


def test_the_dearest_change_gives_the_tier() -> None:
    before = profile()
    assert diff_profiles(before, profile(switch={"drain_timeout_s": 3})).tier is Tier.LIVE
    assert diff_profiles(before, profile(switch={"drain_timeout_s": 3}, engine={"seed": 1})).tier is Tier.OVERLAP


def test_a_change_of_the_listener_says_that_no_switch_carries_it() -> None:
    diff = diff_profiles(profile(server={"port": 8000}), profile(server={"port": 8001}))
    assert diff.tier is Tier.NONE
    assert "when engine-host is started anew" in diff.changes[0].note


def test_the_keys_that_the_http_server_reads_are_those_of_the_listener() -> None:
    from engine_host.gateway.server_settings import ServerSettings

    of_vllms_own_app = {"api_key", "allowed_origins", "allowed_methods", "allowed_headers", "middleware"}
    assert set(ServerSettings.__struct_fields__) - of_vllms_own_app <= LISTENER_KEYS


def test_a_secret_is_told_to_differ_and_not_shown() -> None:
    diff = diff_profiles(profile(server={"api_key": "one"}), profile(server={"api_key": "two"}))
    assert (diff.changes[0].before, diff.changes[0].after) == (HIDDEN, HIDDEN)
    added = diff_profiles(profile(), profile(server={"api_key": "two"}))
    assert (added.changes[0].before, added.changes[0].after) == (None, HIDDEN)


def test_the_description_is_no_difference() -> None:
    assert diff_profiles(profile(description="a"), profile(description="b")).changes == []


@pytest.mark.parametrize(
    ("before", "after", "note"),
    [
        ({"served_model_name": ["a", "b"]}, {"served_model_name": ["b"]}, "clients that ask for a get 404 after it"),
        ({"served_model_name": "a"}, {}, "clients that ask for a get 404 after it"),
        ({}, {"served_model_name": "a"}, "clients that ask for org/name get 404 after it"),
        ({"served_model_name": "a"}, {"served_model_name": ["b", "a"]}, ""),
    ],
)
def test_a_name_that_is_served_no_longer_is_noted(before: object, after: object, note: str) -> None:
    (change,) = diff_profiles(profile(engine=before), profile(engine=after)).changes
    assert (change.key, change.note) == ("engine.served_model_name", note)
