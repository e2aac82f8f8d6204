"""What the probe makes of a resolved configuration, with objects that have the attributes that vLLM's have."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from engine_host.engine.vllm import config_probe, resolved

SINGLE = SimpleNamespace()


def model(**changes: Any) -> Any:
    """SmolLM2-135M: 30 layers, 3 KV heads of 64, bfloat16."""
    shape = {"layers": 30, "heads": 3, "head_size": 64, **changes}
    return SimpleNamespace(
        dtype=SimpleNamespace(itemsize=2),
        use_mla=changes.get("use_mla", False),
        is_attention_free=changes.get("is_attention_free", False),
        get_num_layers=lambda parallel: shape["layers"],
        get_num_kv_heads=lambda parallel: shape["heads"],
        get_head_size=lambda: shape["head_size"],
    )


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        ("auto", 30 * 3 * 2 * 64 * 2),
        ("bfloat16", 30 * 3 * 2 * 64 * 2),
        ("fp8_e4m3", 30 * 3 * 2 * 64),
        ("int8_per_token_head", 30 * 3 * 2 * (64 + 4)),
        ("int4_per_token_head", 30 * 3 * 2 * (32 + 4)),
        ("nvfp4", 30 * 3 * 2 * (32 + 4)),
    ],
)
def test_a_token_takes_keys_and_values_of_every_layer_in_the_caches_format(dtype: str, expected: int) -> None:
    assert resolved._kv_bytes_per_token(model(), SINGLE, SimpleNamespace(cache_dtype=dtype)) == expected


def test_latent_attention_keeps_one_vector_a_token() -> None:
    """DeepSeek-V3: 61 layers, 576 values, the same on every rank."""
    deepseek = model(layers=61, heads=1, head_size=576, use_mla=True)
    assert resolved._kv_bytes_per_token(deepseek, SINGLE, SimpleNamespace(cache_dtype="auto")) == 61 * 576 * 2
    assert resolved._kv_bytes_per_token(deepseek, SINGLE, SimpleNamespace(cache_dtype="fp8_ds_mla")) == 61 * 656


def test_a_model_without_attention_has_no_cache() -> None:
    mamba = model(is_attention_free=True)
    assert resolved._kv_bytes_per_token(mamba, SINGLE, SimpleNamespace(cache_dtype="auto")) is None


def test_only_a_draft_with_layers_of_its_own_takes_blocks() -> None:
    """n-gram keeps the target's configuration where a draft's would stand."""
    ngram = SimpleNamespace(method="ngram", draft_model_config="the target's", uses_draft_kv_cache=lambda: False)
    draft = SimpleNamespace(method="draft_model", draft_model_config="the draft's", uses_draft_kv_cache=lambda: True)
    older = SimpleNamespace(method="draft_model", draft_model_config="the draft's", use_eagle=lambda: False)
    assert resolved._draft(None) is None
    assert resolved._draft(ngram) is None
    assert resolved._draft(draft) == "the draft's"
    assert resolved._draft(older) == "the draft's"


def test_the_sentence_of_a_validation_error_is_told_without_its_input() -> None:
    class ValidationError(ValueError):
        def errors(self) -> list[dict[str, Any]]:
            return [
                {"loc": (), "msg": "Value error, max_num_batched_tokens (512) is smaller than max_model_len (2048)"},
                {"loc": ("gpu_memory_utilization",), "msg": "Input should be less than or equal to 1"},
            ]

    assert config_probe._reason(ValidationError("2 validation errors [input_value=...]")) == (
        "max_num_batched_tokens (512) is smaller than max_model_len (2048); "
        "gpu_memory_utilization: Input should be less than or equal to 1"
    )
    assert config_probe._reason(KeyError("x")) == "KeyError: 'x'"
    assert (
        config_probe._reason(ValueError("a sentence over two\n  lines of text")) == "a sentence over two lines of text"
    )


def test_warnings_of_vllm_are_heard_while_it_works_and_only_then() -> None:
    logger = logging.getLogger("vllm.config.vllm")
    logger.warning("before")
    with resolved.warnings_of_vllm() as said:
        logger.warning("%s is low", "max_num_batched_tokens")
        logger.info("all is well")
    logger.warning("after")
    assert said == ["max_num_batched_tokens is low"]


def test_a_key_that_vllm_does_not_have_is_left_to_the_caller() -> None:
    names = SimpleNamespace(engine=["model", "table"], server=["port"], nested={"table": ["k"]})

    def knows(engine: dict[str, Any], server: dict[str, Any] | None = None) -> bool:
        return config_probe._knows_all(names, {"engine": engine, "server": server or {}})

    assert knows({"model": "m", "table": {"k": 1}}, {"port": 1})
    assert not knows({"modle": "m"})
    assert not knows({"model": "m"}, {"prot": 1})
    assert not knows({"table": {"x": 1}})
    assert not knows({"table": "text"})
