"""Attention heads over the ranks of tensor parallelism, of the model and of its draft."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine_host.preflight.files import ModelFiles
from engine_host.preflight.findings import error
from engine_host.preflight.parallel import check_parallel, without_vllms_words
from engine_host.protocol.events import Severity
from engine_host.protocol.profiles import Finding


def model(name: str, heads: int, key_value: int, **config: Any) -> ModelFiles:
    shape = {"model_type": "qwen2", "hidden_size": 128 * heads}
    return ModelFiles(name, None, {**shape, "num_attention_heads": heads, "num_key_value_heads": key_value, **config})


TARGET = model("Qwen2.5-72B", 64, 8)
SEVEN = model("Qwen2.5-7B", 28, 4)
FOURTEEN = model("Qwen2.5-14B", 40, 8)
PADDED = model("Qwen2.5-7B-32", 32, 4)


def check(draft: ModelFiles, own: int | None = None, ranks: int = 8, **how: Any) -> list[Finding]:
    table: dict[str, Any] = {"method": "draft_model", **how.pop("table", {})}
    if own is not None:
        table["draft_tensor_parallel_size"] = own
    return check_parallel({"tensor_parallel_size": ranks, "speculative_config": table}, TARGET, draft, **how)


@pytest.mark.parametrize("own", [None, 8])
@pytest.mark.parametrize("draft", [FOURTEEN, PADDED])
def test_a_draft_whose_heads_divide_is_fine_on_as_many_ranks_as_its_target(draft: ModelFiles, own: int | None) -> None:
    assert check(draft, own) == []


@pytest.mark.parametrize("own", [None, 8])
def test_a_draft_whose_heads_do_not_divide_is_refused_with_the_numbers(own: int | None) -> None:
    (finding,) = check(SEVEN, own)
    assert (finding.id, finding.severity) == ("parallel.heads", Severity.ERROR)
    assert "the draft Qwen2.5-7B has 28 attention heads, which 8 ranks" in finding.text
    assert "pad_heads Qwen2.5-7B DIRECTORY --ranks 8" in finding.remedy
    assert "tensor_parallel_size = 4" in finding.remedy, "four divides the 28 of the draft and the 64 of the target"


def test_a_draft_on_fewer_ranks_than_its_target_is_refused_though_vllm_builds_it() -> None:
    (finding,) = check(FOURTEEN, 1)
    assert (finding.id, finding.severity) == ("parallel.draft", Severity.ERROR)
    assert "draft_tensor_parallel_size = 1 and tensor_parallel_size = 8" in finding.text
    assert finding.remedy == "leave draft_tensor_parallel_size out, or set it to 8"


def test_fewer_ranks_are_no_way_out_for_heads_that_do_not_divide() -> None:
    """28 heads on one rank would do; but vLLM spreads the draft over all eight."""
    (finding,) = check(SEVEN, 1)
    assert finding.id == "parallel.draft" and "28 attention heads, which 8 ranks" in finding.text
    assert "or set it to 8" not in finding.remedy and "--ranks 8" in finding.remedy


def test_the_model_itself_is_checked_too() -> None:
    (finding,) = check_parallel({"tensor_parallel_size": 6}, TARGET, None)
    assert "the model Qwen2.5-72B has 64 attention heads, which 6 ranks" in finding.text
    assert "or set tensor_parallel_size = 4" in finding.remedy


def test_key_value_heads_are_shared_or_copied_evenly() -> None:
    """vLLM finds out when the weights load."""
    odd = model("odd", 24, 6)
    assert check_parallel({"tensor_parallel_size": 3}, odd, None) == []
    assert check_parallel({"tensor_parallel_size": 12}, odd, None) == []
    (finding,) = check_parallel({"tensor_parallel_size": 4}, odd, None)
    assert "6 key-value heads, which 4 ranks" in finding.text and finding.remedy


def test_heads_of_zeros_are_only_offered_where_they_can_be_given() -> None:
    quantised = model("q", 28, 4, quantization_config={"quant_method": "awq"})
    (finding,) = check(quantised)
    assert "pad_heads" not in finding.remedy and "whose heads 8 divides" in finding.remedy


def test_heads_on_the_targets_hidden_states_have_rules_of_their_own() -> None:
    assert check(SEVEN, 1, table={"method": "eagle3"}) == []
    assert check(SEVEN, 1, table={"method": None}, method="eagle3") == []
    assert len(check(SEVEN, 1, table={"method": None}, method="draft_model")) == 1


@pytest.mark.parametrize("ranks", [None, 1, "8", 0, -1, True])
def test_no_value_makes_it_raise(ranks: Any) -> None:
    engine = {"tensor_parallel_size": ranks, "speculative_config": {"draft_tensor_parallel_size": "two"}}
    assert check_parallel(engine, TARGET, SEVEN) == []
    assert check_parallel({**engine, "speculative_config": "ngram"}, ModelFiles("x"), ModelFiles("y")) == []


def test_latent_attention_has_no_key_value_heads_to_share() -> None:
    deepseek = model("DeepSeek", 128, 6, kv_lora_rank=512)
    assert check_parallel({"tensor_parallel_size": 8}, deepseek, None) == []


def test_vllms_own_words_about_the_same_give_way_and_others_stay() -> None:
    same = error("config.refused", "vLLM refuses the configuration: Total number of attention heads (28) must be")
    other = error("config.refused", "vLLM refuses the configuration: something else")
    assert without_vllms_words([same, other]) == [other]


def test_the_installed_vllm_still_wants_a_draft_on_the_ranks_of_its_target() -> None:
    """A release that lifts this is noticed here; until then the configuration is built and the start fails."""
    from importlib.util import find_spec

    spec = find_spec("vllm")
    assert spec is not None and spec.submodule_search_locations
    root = Path(spec.submodule_search_locations[0])
    words = (root / "v1/spec_decode/draft_model.py").read_text()
    assert "'draft_tensor_parallel_size' and 'tensor_parallel_size' " in words and "must be the same." in words
    layers = (root / "model_executor/models/qwen2.py").read_text()
    assert "assert self.total_num_heads % tp_size == 0" in layers
