"""`[throttle]` of a profile: what it takes, what contradicts itself, and that its API keys are told to nobody."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine_host.profiles import Profile, build_profile, load_profile
from engine_host.profiles.diff import diff_profiles
from engine_host.profiles.directory import detail_of
from engine_host.profiles.exporter import to_command_line, to_yaml
from engine_host.profiles.importer import import_text
from engine_host.profiles.shape import HIDDEN
from engine_host.profiles.throttle_check import BURSTS, contradictions
from engine_host.profiles.throttle_table import Auto, Throttle
from engine_host.protocol.errors import OperatorError
from engine_host.protocol.profiles import Tier

SECRET = "sk-very.secret"
DIGEST = "sha256:" + "ab" * 32


def profile(name: str = "p", **throttle: Any) -> Profile:
    return build_profile({"schema": 1, "engine": {"model": "m"}, "throttle": throttle}, Path(f"{name}.toml"))


def refused(**throttle: Any) -> OperatorError:
    with pytest.raises(OperatorError) as caught:
        profile(**throttle)
    return caught.value


def test_the_defaults_contradict_nothing_and_limit_nothing() -> None:
    assert not list(contradictions(Throttle()))
    table = profile().throttle
    assert (table.max_inflight, table.request_rate, table.min_class, table.auto.mode) == (None, None, None, "off")


def test_what_a_profile_says_is_in_its_effective_values_with_the_defaults() -> None:
    found = profile(max_inflight=16, auto={"mode": "observe"})
    table = found.effective()["throttle"]
    assert (table["max_inflight"], table["hold_queue"], table["auto"]["mode"]) == (16, 256, "observe")
    assert found.throttle.auto == Auto(mode="observe")


def test_a_default_written_out_means_the_same_and_another_value_does_not() -> None:
    assert profile().digest == profile(hold_queue=256, auto={"kv_enter": 0.9}).digest
    assert profile().digest != profile(hold_queue=255).digest
    assert profile().digest != profile(auto={"kv_enter": 0.91}).digest


def test_every_default_written_out_means_the_same() -> None:
    table = {key: value for key, value in profile().effective()["throttle"].items() if value is not None}
    table["auto"] = {key: value for key, value in table["auto"].items() if value is not None}
    assert diff_profiles(profile(), profile("q", **table)).changes == []
    assert profile().digest == profile(**table).digest


def test_it_is_inherited_key_by_key_and_a_fault_is_told_with_the_file_that_has_it(tmp_path: Path) -> None:
    base, heir = tmp_path / "base.toml", tmp_path / "heir.toml"
    base.write_text(
        'schema = 1\n[engine]\nmodel = "m"\n[throttle]\nmax_inflight = 16\n[throttle.auto]\nmode = "on"\n'
        f'[throttle.api_key_classes]\n"{SECRET}" = "high"\n'
    )
    heir.write_text(
        'schema = 1\nextends = "base"\n[throttle]\nhold_queue = 0\n[throttle.auto]\nkv_enter = 0.95\n'
        '[throttle.api_key_classes]\nother = "low"\n'
    )
    table = load_profile(heir).throttle
    assert (table.max_inflight, table.hold_queue, table.auto.mode, table.auto.kv_enter) == (16, 0, "on", 0.95)
    assert table.api_key_classes == {SECRET: "high", "other": "low"}
    base.write_text(base.read_text().replace("max_inflight = 16", "request_burst = 4"))
    with pytest.raises(OperatorError) as caught:
        load_profile(heir)
    assert caught.value.fact.startswith(f"{base}: throttle.request_burst: 4 limits nothing without request_rate")


@pytest.mark.parametrize(
    ("throttle", "fact", "remedy"),
    [
        ({"max_inflght": 3}, "unknown key throttle.max_inflght", 'did you mean "max_inflight"?'),
        ({"max_inflight": 0}, "throttle.max_inflight = 0: expected a whole number of at least 1", "default"),
        ({"max_inflight": -3}, "throttle.max_inflight = -3", "default"),
        ({"max_inflight": 1.5}, "throttle.max_inflight = 1.5: expected a whole number", "default"),
        ({"max_inflight": True}, "throttle.max_inflight = true:", "default"),
        ({"max_inflight": "16"}, "throttle.max_inflight = '16': expected a whole number, got a text", "default"),
        ({"max_inflight": 10**12}, "at most 1000000000", "default"),
        ({"request_rate": 0}, "throttle.request_rate = 0: expected a number of at least 0.001", "default"),
        ({"request_rate": float("nan")}, "throttle.request_rate = nan is no finite number", "write a number"),
        ({"request_rate": float("inf")}, "throttle.request_rate = inf is no finite number", "write a number"),
        ({"hold_deadline_s": 1e9}, "throttle.hold_deadline_s = 1000000000.0", "default"),
        ({"classes": "high"}, "throttle.classes = 'high': expected a list", "default"),
        ({"classes": []}, "throttle.classes: [] leaves no class", "write"),
        ({"classes": ["a", "a"]}, "throttle.classes: ['a', 'a'] names one twice", "each class once"),
        ({"classes": ["High", "high"]}, "throttle.classes: ['High', 'high'] names one twice", "each class once"),
        ({"classes": ["none", "a"]}, "throttle.classes: 'none' stands for no limit", "something else"),
        ({"classes": ["a", "None"]}, "throttle.classes: 'None' stands for no limit", "something else"),
        ({"min_class": "x", "classes": ["mid", "b", "a"]}, "throttle.min_class: 'x'", "valid: mid, b, a"),
        ({"classes": ["a b", "c"]}, "throttle.classes: 'a b' is no name of a class", "letters"),
        ({"default_class": "nomal"}, "throttle.default_class: 'nomal' is not in", 'did you mean "normal"?'),
        ({"min_class": "hihg"}, "throttle.min_class: 'hihg' is not in throttle.classes", 'did you mean "high"?'),
        ({"min_class": "low", "classes": ["a", "b"]}, "throttle.min_class: 'low'", "valid: a, b"),
        ({"class_header": "x priority"}, "throttle.class_header: 'x priority' is no name", "x-priority"),
        ({"request_burst": 4}, "throttle.request_burst: 4 limits nothing without request_rate", "add request_rate"),
        ({"prompt_token_burst": 4}, "throttle.prompt_token_burst: 4", "add prompt_token_rate"),
        ({"overlong": "cut"}, "throttle.overlong = 'cut': 'cut' is not one", "valid: reject, truncate, segment, or"),
        ({"overlong": "trunkate"}, "throttle.overlong = 'trunkate'", 'did you mean "truncate"? Or leave it out'),
        ({"auto": 3}, "throttle.auto is a number, expected a table", "[throttle.auto]"),
        ({"auto": {"kv_entr": 0.9}}, "unknown key throttle.auto.kv_entr", 'did you mean "kv_enter"?'),
        ({"auto": {"kv_enter": 90}}, "throttle.auto.kv_enter = 90: expected a number of at most 1.0", "default"),
        ({"auto": {"mode": "yes"}}, "throttle.auto.mode = 'yes'", "valid: off, observe, on"),
        ({"auto": {"kv_enter": 0.7}}, "kv_leave: 0.85, its default, is not below auto.kv_enter = 0.7:", "add it with"),
        ({"auto": {"kv_leave": 0.9}}, "kv_leave: 0.9 is not below auto.kv_enter = 0.9, its default:", "give less"),
        ({"auto": {"kv_leave": 0.8, "kv_enter": 0.7}}, "kv_leave: 0.8 is not below auto.kv_enter = 0.7:", "less than"),
        ({"auto": {"waiting_leave": 8}}, "throttle.auto.waiting_leave: 8 is not below", "less than 8"),
        ({"auto": {"ttft_p95_leave_s": 1}}, "auto.ttft_p95_leave_s: 1 has no auto.ttft_p95_enter_s", "remove it"),
        ({"auto": {"ttft_p95_enter_s": 2}}, "auto.ttft_p95_enter_s: 2 has no auto.ttft_p95_leave_s", "below 2"),
        ({"auto": {"decrease": 1}}, "throttle.auto.decrease = 1", "default"),
        ({"auto": {"dials": ["spec"]}}, "throttle.auto.dials = ['spec']", "default"),
        ({"auto": {"min_inflight": 8}, "max_inflight": 4}, "auto.min_inflight: 8 is above throttle.max_inflight", "4"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_its_key_and_what_to_do(throttle: dict[str, Any], fact: str, remedy: str) -> None:
    error = refused(**throttle)
    assert error.fact.startswith("p.toml: ")
    assert fact in error.fact
    assert remedy in error.remedy


def test_all_contradictions_are_told_at_once() -> None:
    error = refused(request_burst=3, min_class="x", auto={"kv_enter": 0.1})
    assert "(3) throttle.auto.kv_leave" in error.fact


def test_preemptions_may_enter_and_leave_at_none() -> None:
    assert profile(auto={"preemptions_enter": 0.0}).throttle.auto.preemptions_enter == 0.0


def test_every_burst_and_rate_is_a_key() -> None:
    assert {*BURSTS, *BURSTS.values()} <= set(Throttle.__struct_fields__)


def test_a_change_of_it_is_live() -> None:
    diff = diff_profiles(profile(), profile(max_inflight=16, auto={"mode": "on"}))
    assert diff.tier is Tier.LIVE
    assert [(one.key, one.before, one.after) for one in diff.changes] == [
        ("throttle.auto.mode", "off", "on"),
        ("throttle.max_inflight", None, 16),
    ]


# --- secrets ----------------------------------------------------------------------------------------------------


def test_api_keys_are_shown_neither_in_the_profile_nor_in_a_diff() -> None:
    found, other = profile(api_key_classes={SECRET: "high"}), profile(api_key_classes={DIGEST: "low"})
    assert detail_of(found).effective["throttle"]["api_key_classes"] == HIDDEN
    assert detail_of(profile()).effective["throttle"]["api_key_classes"] == {}
    [change] = diff_profiles(found, other).changes
    assert (change.key, change.before, change.after) == ("throttle.api_key_classes", HIDDEN, HIDDEN)
    [added] = diff_profiles(profile(), other).changes
    assert (added.before, added.after) == ({}, HIDDEN)
    assert found.digest != other.digest
    assert found.holds_secrets and not profile().holds_secrets


@pytest.mark.parametrize(
    "api_key_classes",
    [
        {SECRET: "hgih"},
        {SECRET: 3},
        {SECRET: float("nan")},
        {SECRET: {"deep": float("inf")}},
        {"sha256:" + SECRET: "high"},
        {SECRET: "high", " ": "high"},
        [SECRET],
        SECRET,
    ],
)
def test_no_error_names_an_api_key(api_key_classes: Any) -> None:
    error = refused(api_key_classes=api_key_classes)
    assert "throttle.api_key_classes" in error.fact
    assert "very" not in str(error)


def test_a_mistake_in_unset_names_no_api_key(tmp_path: Path) -> None:
    base, heir = tmp_path / "base.toml", tmp_path / "heir.toml"
    base.write_text(f'schema = 1\n[engine]\nmodel = "m"\n[throttle.api_key_classes]\n"{SECRET}" = "high"\n')
    for key in ("throttle.api_key_classes.sk-very", "throttle.api_key_classes.sk-very.secrt"):
        heir.write_text(f'schema = 1\nextends = "base"\nunset = ["{key}"]\n')
        with pytest.raises(OperatorError) as caught:
            load_profile(heir)
        assert "very" not in str(caught.value)


@pytest.mark.parametrize("write", [to_command_line, to_yaml])
def test_an_export_is_imported_as_it_was_but_for_the_api_keys(write: Any) -> None:
    found = profile(
        max_inflight=16, request_rate=2.5, min_class="b", classes=["a", "b"], api_key_classes={SECRET: "a"},
        auto={"mode": "on", "dials": ["max_active_seqs"]},
    )  # fmt: skip
    text = write(found)
    assert "very" not in text and "throttle.api_key_classes is left out" in text
    again = build_profile(import_text(text).content(), Path("p.toml"))
    assert again.throttle == msgspec.structs.replace(found.throttle, api_key_classes={})
