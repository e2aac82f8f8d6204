"""Field cases 12 to 15 and their kin: options that are taken and do not do what they say."""

from __future__ import annotations

from typing import Any

import pytest

from engine_host.nearest import nearest
from engine_host.preflight.names import schedule_for, unknown_keys
from engine_host.preflight.options import check_options
from engine_host.preflight.setting import Setting
from engine_host.preflight.speculation import schedule_fault
from engine_host.profiles import ValidNames
from engine_host.protocol.events import Severity
from engine_host.protocol.profiles import Finding
from tests.unit.preflight.facts import facts, on_gpu

SCHEDULE = "num_speculative_tokens_per_batch_size"
SPECULATION_NAMES = ("method", "model", "num_speculative_tokens", "prompt_lookup_max", "prompt_lookup_min", SCHEDULE)
VALID = ValidNames(
    engine=("model", "block_size", "speculative_config", "kv_offloading_size", "max_num_seqs", "enable_prefix_caching"),
    server=("host", "port"),
    nested={"speculative_config": SPECULATION_NAMES},
)


def found(engine: dict[str, Any], **setting: Any) -> dict[str, Finding]:
    return {finding.id: finding for finding in check_options(Setting(engine={"model": "m", **engine}, **setting))}


def speculating(**table: Any) -> dict[str, Any]:
    return {"speculative_config": {"method": "ngram", "num_speculative_tokens": 5, **table}}


def test_a_plain_profile_has_nothing_to_tell() -> None:
    assert found({}, facts=on_gpu(speculation_method=None, num_speculative_tokens=None)) == {}


def test_the_dead_switch_by_batch_size_is_told_where_vllm_still_takes_it() -> None:
    """#35060."""
    names = (*SPECULATION_NAMES, "disable_by_batch_size")
    finding = found(speculating(disable_by_batch_size=32), speculation_names=names)["option.dead"]
    assert finding.severity is Severity.WARNING and "no effect" in finding.text
    assert f"{SCHEDULE} = [[1, 31, 5], [32, 256, 0]]" in finding.remedy


def test_the_schedule_that_is_offered_is_one_that_vllm_takes() -> None:
    from ast import literal_eval

    for engine in (
        speculating(disable_by_batch_size=2),
        speculating(),
        {"max_num_seqs": 8, **speculating(disable_by_batch_size=32)},
    ):
        schedule = literal_eval(schedule_for(engine).split(" = ")[1])
        assert schedule_fault(schedule) is None


def test_the_dead_switch_is_an_unknown_key_with_the_schedule_offered_where_vllm_dropped_it() -> None:
    (finding,) = unknown_keys({"model": "m", **speculating(disable_by_batch_size=32)}, {}, VALID)
    assert (finding.id, finding.severity) == ("option.gone", Severity.ERROR)
    assert f"{SCHEDULE} = [[1, 31, 5], [32, 256, 0]]" in finding.remedy


def test_ngram_prompt_lookup_max_is_refused_with_the_right_name() -> None:
    """#24888."""
    (finding,) = unknown_keys({"model": "m", **speculating(ngram_prompt_lookup_max=4)}, {}, VALID)
    assert "engine.speculative_config.ngram_prompt_lookup_max" in finding.text
    assert '"prompt_lookup_max"' in finding.remedy


def test_every_unknown_key_is_told_with_the_nearest_name() -> None:
    engine = {"model": "m", "blok_size": 16, "swap_space": 4, "xyzzy": 1}
    findings = unknown_keys(engine, {"prot": 1}, VALID)
    assert [finding.id for finding in findings] == ["names.unknown", "option.gone", "names.unknown", "names.unknown"]
    assert '"block_size"' in findings[0].remedy and '"port"' in findings[3].remedy
    assert "kv_offloading_size = 4" in findings[1].remedy
    assert "no such argument" in findings[2].remedy
    assert nearest("xyzzy", VALID.engine) is None


def test_speculation_that_is_no_table_is_told() -> None:
    (finding,) = unknown_keys({"model": "m", "speculative_config": "ngram"}, {}, VALID)
    assert finding.id == "names.no_table"


@pytest.mark.parametrize(
    ("schedule", "word"),
    [
        ([[2, 8, 3]], "expected 1"),
        ([[1, 8, 3], [8, 16, 1]], "overlap at 8"),
        ([[1, 0, 3]], "empty"),
        ([[1, 8, -1]], "negative"),
        ([[1, 8]], "no [first, last, K]"),
        ([], "a list"),
        ("5", "a list"),
    ],
)
def test_a_schedule_that_the_scheduler_would_refuse_after_loading_is_refused_before(schedule: Any, word: str) -> None:
    finding = found(speculating(**{SCHEDULE: schedule}))["option.schedule"]
    assert finding.severity is Severity.ERROR and word in finding.text


def test_a_schedule_above_k_is_capped() -> None:
    finding = found(speculating(**{SCHEDULE: [[1, 4, 8], [5, 64, 2]]}))["option.schedule_clamped"]
    assert "up to 8" in finding.text and "num_speculative_tokens = 8" in finding.remedy


def test_a_schedule_beside_data_parallel_is_switched_off() -> None:
    finding = found({"data_parallel_size": 2, **speculating(**{SCHEDULE: [[1, 4, 5]]})})["option.schedule_off"]
    assert finding.severity is Severity.WARNING and "data_parallel_size = 2" in finding.text


@pytest.mark.parametrize(("k", "is_told"), [(1, True), (3, True), (4, False), (8, False), (9, True)])
def test_a_draft_length_outside_4_to_8_is_told(k: int, is_told: bool) -> None:
    assert ("option.draft_length" in found(speculating(num_speculative_tokens=k))) is is_told


def test_prompt_lookup_beside_a_draft_model_is_ignored() -> None:
    finding = found(speculating(method="draft_model", model="d", prompt_lookup_max=4))["option.ignored"]
    assert "prompt_lookup_max" in finding.text and "draft_model" in finding.text


def test_a_draft_model_beside_ngram_is_ignored() -> None:
    assert "model" in found(speculating(model="some/draft"))["option.ignored"].text
    assert "option.ignored" not in found(speculating(model="ngram"))


def test_a_draft_context_shorter_than_the_models_is_told() -> None:
    finding = found(speculating(method="draft_model", model="d", max_model_len=512), facts=facts())[
        "option.draft_context"
    ]
    assert "512" in finding.text and "2,048" in finding.text


def test_a_batch_budget_under_the_length_without_chunks_is_refused_on_a_laptop() -> None:
    engine = {"max_num_batched_tokens": 512, "max_model_len": 2048, "enable_chunked_prefill": False}
    assert found(engine)["option.batched_tokens"].severity is Severity.ERROR
    assert "option.batched_tokens" not in found({**engine, "enable_chunked_prefill": True})
    assert "option.batched_tokens" not in found(engine, facts=facts())  # vLLM's own words tell it then


def test_a_block_size_that_is_no_multiple_of_32_is_told_on_cpu_only() -> None:
    assert "block_size = 32" in found({"block_size": 16}, facts=facts())["option.block_size"].remedy
    assert "option.block_size" not in found({"block_size": 16}, facts=on_gpu())
    assert "option.block_size" not in found({"block_size": 64}, facts=facts())


def test_a_share_of_memory_on_cpu_is_told_in_bytes() -> None:
    asks = facts(kv_cache_memory_bytes=None, gpu_memory_utilization=0.92)
    finding = found({}, facts=asks, machine_bytes=100 << 30, environment={})["option.cpu_share"]
    assert "92 GiB" in finding.text and "kv_cache_memory_bytes" in finding.remedy
    assert "option.cpu_share" not in found({}, facts=facts(), environment={})


def test_the_environment_that_overrules_the_profile_on_cpu_is_named() -> None:
    engine = {"kv_cache_memory_bytes": 75_000_000}
    finding = found(engine, facts=facts(), environment={"VLLM_CPU_KVCACHE_SPACE": "4"})["option.overruled"]
    assert "VLLM_CPU_KVCACHE_SPACE = 4" in finding.text


def test_priority_scheduling_says_what_a_request_without_one_gets() -> None:
    assert "has 0" in found({"scheduling_policy": "priority"})["option.priority"].text
    assert "option.priority" not in found({"scheduling_policy": "fcfs"})


def test_ngram_on_a_gpu_switches_asynchronous_scheduling_off() -> None:
    assert "ngram_gpu" in found(speculating(), facts=on_gpu())["option.async_off"].remedy
    assert "option.async_off" not in found(speculating(), facts=facts())
