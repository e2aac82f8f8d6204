"""Field case 10: a KV cache too small for max_model_len, in the words of vLLM's releases and in ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_host.engine.kv_shortage import KvShortage, explained, parse_kv_shortage
from tests.unit.preflight.facts import GIB


def gib(size: float) -> int:
    return int(size * GIB)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(
            "ValueError: The model's max seq len (4096) is larger than the maximum number of tokens that can be stored "
            "in KV cache (3664). Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when "
            "initializing the engine.",
            KvShortage(asked_tokens=4096, longest_tokens=3664),
            id="0.2 to 0.8, issue 2418",
        ),
        pytest.param(
            "ValueError: To serve at least one request with the models's max seq len (131072), (16.00 GiB KV cache is "
            "needed, which is larger than the available KV cache memory (0.71 GiB). Based on the available memory, the "
            "estimated maximum model length is 5632. Try increasing `gpu_memory_utilization` or decreasing "
            "`max_model_len` when initializing the engine.",
            KvShortage(131072, 5632, gib(16.0), gib(0.71)),
            id="0.9, issue 29233",
        ),
        pytest.param(
            "(EngineCore pid=316) ValueError: To serve at least one request with the model's max seq len (2048), (0.04 "
            "GiB KV cache is needed, which is larger than the available KV cache memory (0.02 GiB). Based on the "
            "available memory, the estimated maximum model length is 1,056. Try increasing `gpu_memory_utilization` "
            "(which also controls CPU memory on the CPU backend) or decreasing `max_model_len` when initializing the "
            "engine. See https://docs.vllm.ai/en/latest/configuration/conserving_memory/ for more details.",
            KvShortage(2048, 1056, gib(0.04), gib(0.02)),
            id="0.26 to 0.32",
        ),
        pytest.param(
            "To serve at least one request with the model's max seq len (100000), (4.26 GiB KV cach\ne is needed, "
            "which is larger than the available KV cache memory (4.25 GiB). Try increasing",
            None,
            id="broken by a terminal inside a word",
        ),
        pytest.param(
            "To serve at least one request with the model's max seq len (100000), (4.26 GiB KV\n cache is needed, "
            "which is larger than the available KV cache memory (4.25 GiB). Try increasing",
            KvShortage(100000, None, gib(4.26), gib(4.25)),
            id="no length fits, broken between words",
        ),
        pytest.param(
            "No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the "
            "engine.",
            KvShortage(available_bytes=0),
            id="nothing left",
        ),
        pytest.param("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", None, id="another"),
        pytest.param("", None, id="nothing said"),
    ],
)
def test_what_an_engine_says_about_its_kv_cache_is_read(text: str, expected: KvShortage | None) -> None:
    assert parse_kv_shortage(text) == expected


def test_the_installed_vllm_says_it_in_words_that_are_read() -> None:
    """The message is formatted in the installed code; a release that changes it is noticed here."""
    from importlib.util import find_spec
    from pathlib import Path

    spec = find_spec("vllm")
    assert spec is not None and spec.submodule_search_locations
    source = (Path(spec.submodule_search_locations[0]) / "v1/core/kv_cache_utils.py").read_text()
    assert "To serve at least one request with the model's max seq len " in source
    assert "cache is needed, which is larger than the available KV cache " in source
    assert "the estimated maximum model length is " in source


def test_a_shortage_is_told_in_a_sentence() -> None:
    text = str(KvShortage(131072, 5632, gib(16.0), gib(0.71)))
    assert text == (
        "the KV cache is too small for one request of max_model_len = 131,072, 16 GiB needed, 727 MiB available, "
        "the longest that fits is 5,632 tokens"
    )


@given(st.text(max_size=300))
def test_no_text_breaks_the_reader(text: str) -> None:
    parse_kv_shortage(text)
    parse_kv_shortage(
        f"max seq len ({text}) is larger than the maximum number of tokens that can be stored in KV cache"
    )


SAID = (
    "ValueError: To serve at least one request with the model's max seq len (8192), (1.5 GiB KV cache is needed, which "
    "is larger than the available KV cache memory (0.75 GiB). Based on the available memory, the estimated maximum "
    "model length is 4,096. Try increasing `gpu_memory_utilization` or decreasing `max_model_len`."
)


@pytest.mark.parametrize(
    ("engine", "environment", "raised"),
    [
        ({}, {}, "gpu_memory_utilization"),
        ({"kv_cache_memory_bytes": 10}, {}, "kv_cache_memory_bytes"),
        ({"num_gpu_blocks_override": 10, "kv_cache_memory_bytes": 10}, {}, "num_gpu_blocks_override"),
        ({"kv_cache_memory_bytes": 10}, {"VLLM_CPU_KVCACHE_SPACE": "4"}, "VLLM_CPU_KVCACHE_SPACE in the host's env"),
    ],
)
def test_the_operator_gets_the_longest_length_that_fits_and_the_setting_that_his_profile_has(
    engine: Mapping[str, Any], environment: Mapping[str, str], raised: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VLLM_CPU_KVCACHE_SPACE", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    told = explained("Engine core initialization failed. See root cause above.", ["Error: other", SAID], engine)
    assert told.startswith("the KV cache is too small for one request of max_model_len = 8,192, 1.5 GiB needed, ")
    assert f"set max_model_len = 4096 or less, or raise {raised}" in told
    assert len(told) < 400, "it must survive whole on a screen and in a snapshot"


def test_where_no_length_fits_none_is_offered() -> None:
    told = explained("No available memory for the cache blocks. Try increasing", [], {})
    assert told.endswith("raise gpu_memory_utilization; no length fits as it is") and "max_model_len =" not in told


def test_any_other_reason_stays_as_it_is() -> None:
    assert explained("CUDA out of memory", ["RuntimeError: x"], {"max_model_len": 5}) == "CUDA out of memory"
