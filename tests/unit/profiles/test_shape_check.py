"""What a check without a host finds, and what it says that it cannot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine_host.profiles import Profile, ProfileDirectory, build_profile
from engine_host.profiles.shape_check import shape_check
from engine_host.protocol.events import Severity

SHIPPED = ProfileDirectory(Path(__file__).parents[3] / "profiles")


def profile(engine: dict[str, Any], **tables: Any) -> Profile:
    return build_profile({"schema": 1, "engine": {"model": "org/m", **engine}, **tables}, Path("p.toml"))


@pytest.mark.parametrize("name", SHIPPED.files())
def test_nothing_is_found_in_a_shipped_profile(name: str) -> None:
    result = shape_check(SHIPPED.load(name))
    assert result.ok
    assert result.findings == []


def test_it_says_what_only_the_host_can_check() -> None:
    said = " ".join(shape_check(profile({})).unchecked)
    for what in ("vLLM that is installed", "tokenizers", "memory", "port"):
        assert what in said


def test_an_overlap_that_leaves_windows_no_new_text_is_found_without_a_host() -> None:
    throttle = {"overlong": "segment", "segment_overlap_tokens": 64}
    [found] = shape_check(profile({"max_model_len": 64}, throttle=throttle)).findings
    assert (found.id, found.severity) == ("throttle.overlap", Severity.ERROR)
    assert shape_check(profile({"max_model_len": 2048}, throttle=throttle)).findings == []
    assert shape_check(profile({}, throttle=throttle)).findings == []


@pytest.mark.parametrize(
    ("engine", "text", "remedy"),
    [
        (
            {"max_num_seq": 3},
            "engine.max_num_seq is no argument",
            'did you mean "max_num_seqs"? Or, if another',
        ),
        (
            {"speculative_config": {"prompt_lookup_maxi": 3}},
            "engine.speculative_config.prompt_lookup_maxi is no argument",
            'did you mean "prompt_lookup_max"? Or, if another',
        ),
        (
            {"speculative_config": {"ngram_prompt_lookup_max": 3}},
            "engine.speculative_config.ngram_prompt_lookup_max is no argument",
            "ngram_prompt_lookup_max: is called prompt_lookup_max",
        ),
        (
            {"num_scheduler_steps": 8},
            "engine.num_scheduler_steps is no",
            "steps: multi-step scheduling is gone",
        ),
        ({"enable_reasoning": True}, "engine.enable_reasoning is no", "is implied by reasoning_parser today"),
    ],
)
def test_a_slip_and_a_name_that_is_gone_are_errors(engine: dict[str, Any], text: str, remedy: str) -> None:
    result = shape_check(profile(engine))
    assert not result.ok
    (finding,) = result.findings
    assert finding.severity is Severity.ERROR
    assert finding.text.startswith(f"p.toml: {text}")
    assert remedy in finding.remedy
    assert "left out" not in finding.remedy, "that is what an import does"


@pytest.mark.parametrize(
    ("engine", "text", "remedy"),
    [
        ({"zebra": 3}, "engine.zebra is no argument", "--on-host"),
        ({"max_num_seqs": "many"}, "engine.max_num_seqs is a text", "a whole number"),
        ({"max_num_seqs": True}, "engine.max_num_seqs is true or false", "a whole number"),
        ({"max_num_seqs": 1.5}, "engine.max_num_seqs is a number", "a whole number"),
        ({"enforce_eager": "yes"}, "engine.enforce_eager is a text", "true or false"),
        ({"speculative_config": 3}, "engine.speculative_config is a number", "a table"),
        (
            {"speculative_config": {"num_speculative_tokens": "five"}},
            "engine.speculative_config.num_speculative_tokens is a text",
            "a whole number",
        ),
        ({"cudagraph_capture_sizes": [1, "two"]}, "engine.cudagraph_capture_sizes is a text", "a whole number"),
    ],
)
def test_doubts_are_warnings_with_the_file_and_the_key(engine: dict[str, Any], text: str, remedy: str) -> None:
    result = shape_check(profile(engine))
    assert result.ok
    (finding,) = result.findings
    assert finding.severity is Severity.WARNING
    assert finding.text.startswith(f"p.toml: {text}")
    assert remedy in finding.remedy
