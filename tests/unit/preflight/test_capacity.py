"""Field case 10: a KV cache too small for max_model_len, in our forecast."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine_host.preflight.capacity import capacity_of, check_capacity
from engine_host.protocol.events import Severity
from tests.unit.preflight.facts import GIB, facts, on_gpu


def test_the_demo_profile_holds_100_blocks_beside_the_null_block() -> None:
    capacity = capacity_of(facts(), 75_000_000)
    assert capacity is not None
    assert (capacity.blocks, capacity.tokens, capacity.longest_tokens) == (100, 3200, 2048)


def test_a_length_that_does_not_fit_is_refused_with_the_longest_that_does() -> None:
    """50 MB are 67 blocks of 32 tokens: 66 for requests, 2,112 tokens."""
    capacity, (finding,) = check_capacity(facts(max_model_len=2113), 50_000_000, is_exact=True)
    assert capacity is not None and capacity.longest_tokens == 2112
    assert (finding.id, finding.severity) == ("capacity.short", Severity.ERROR)
    assert "2,113 tokens needs 47.1 MiB" in finding.text and "46.4 MiB are there" in finding.text
    assert "the longest that fits is 2,112 tokens" in finding.text
    assert "max_model_len = 2112" in finding.remedy


def test_the_length_that_was_offered_fits() -> None:
    capacity, findings = check_capacity(facts(max_model_len=2112), 50_000_000, is_exact=True)
    assert capacity is not None and capacity.longest_tokens == 2112
    assert all(finding.severity is Severity.INFO for finding in findings)


def test_the_bytes_that_were_offered_are_enough() -> None:
    small = facts(max_model_len=4096, kv_cache_memory_bytes=50_000_000)
    _, (finding,) = check_capacity(small, 50_000_000, is_exact=True)
    offered = int(finding.remedy.rsplit(" ", 1)[1])
    capacity, _ = check_capacity(small, offered, is_exact=True)
    assert capacity is not None and capacity.longest_tokens == 4096


def test_a_draft_model_takes_blocks_too() -> None:
    with_draft = capacity_of(facts(draft_kv_bytes_per_token=23040), 75_000_000)
    assert with_draft is not None and with_draft.blocks == 75_000_000 // (2 * 737_280) - 1


def test_a_forecast_of_what_profiling_leaves_only_warns() -> None:
    _, (finding,) = check_capacity(on_gpu(max_model_len=131072), 1 * GIB, is_exact=False)
    assert finding.severity is Severity.WARNING and "gpu_memory_utilization" in finding.remedy


def test_layers_that_are_grouped_and_padded_only_warn() -> None:
    _, (finding,) = check_capacity(facts(max_model_len=8192, is_kv_uniform=False), 50_000_000, is_exact=True)
    assert finding.severity is Severity.WARNING and "about" in finding.text


def test_a_fixed_number_of_blocks_decides_over_bytes() -> None:
    capacity, (finding,) = check_capacity(facts(num_gpu_blocks_override=33), 75_000_000, is_exact=True)
    assert capacity is not None and capacity.tokens == 1024
    assert finding.severity is Severity.ERROR and "num_gpu_blocks_override" in finding.remedy


def test_a_fitted_length_is_told_and_not_refused() -> None:
    _, (finding,) = check_capacity(facts(max_model_len=8192, is_length_fitted=True), 50_000_000, is_exact=True)
    assert finding.severity is Severity.INFO and "2,112" in finding.text


def test_not_one_block_is_told_without_offering_a_length() -> None:
    capacity, (finding,) = check_capacity(facts(), 700_000, is_exact=True)
    assert capacity is not None and capacity.longest_tokens == 0
    assert "max_model_len =" not in finding.remedy and "kv_cache_memory_bytes" in finding.remedy


def test_a_model_without_an_attention_cache_has_no_capacity() -> None:
    assert check_capacity(facts(kv_bytes_per_token=None), 75_000_000, is_exact=True) == (None, [])


@given(st.integers(1, 1 << 40), st.integers(1, 200_000), st.sampled_from([16, 32, 128]))
def test_the_longest_that_fits_is_never_refused(kv_bytes: int, asked: int, block_size: int) -> None:
    first = check_capacity(facts(max_model_len=asked, block_size=block_size), kv_bytes, is_exact=True)[0]
    assert first is not None
    if first.longest_tokens > 0:
        fitting = facts(max_model_len=first.longest_tokens, block_size=block_size)
        second, findings = check_capacity(fitting, kv_bytes, is_exact=True)
        assert second is not None and second.longest_tokens == first.longest_tokens
        assert not any(finding.severity is Severity.ERROR for finding in findings)
