"""A model with more heads says the same: compared by transformers, logit by logit."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from engine_host.pad_heads import Heads, heads_for, main, pad_model
from engine_host.protocol.errors import EXIT_DONE, EXIT_INVALID, OperatorError

QWEN_7B = {"model_type": "qwen2", "num_attention_heads": 28, "num_key_value_heads": 4, "hidden_size": 3584}


def test_seven_billion_parameters_of_qwen_get_four_heads_more_for_eight_gpus() -> None:
    assert heads_for(QWEN_7B, 8) == Heads(before=28, after=32, key_value=4, size=128)


@pytest.mark.parametrize(("ranks", "after"), [(1, 28), (2, 28), (4, 28), (8, 32), (16, 32)])
def test_no_more_heads_than_the_gpus_need(ranks: int, after: int) -> None:
    assert heads_for(QWEN_7B, ranks).after == after


@pytest.mark.parametrize(
    ("config", "ranks"),
    [
        ({**QWEN_7B, "model_type": "gemma3"}, 8),
        ({**QWEN_7B, "use_sliding_window": True}, 8),
        ({**QWEN_7B, "quantization_config": {"quant_method": "gptq"}}, 8),
        (QWEN_7B, 3),
    ],
    ids=["another kind", "sliding window", "quantised", "key-value heads"],
)
def test_what_cannot_be_done_is_told_with_a_remedy(config: dict[str, Any], ranks: int) -> None:
    with pytest.raises(OperatorError) as told:
        heads_for(config, ranks)
    assert told.value.fact and told.value.remedy


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two random models of 14 heads in 2 groups: Qwen2 in two files, Llama in one."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(1)
    directory = tmp_path_factory.mktemp("models")
    shape: dict[str, Any] = {
        "hidden_size": 112,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "vocab_size": 96,
        "tie_word_embeddings": False,
    }
    qwen = Qwen2ForCausalLM(Qwen2Config(**shape))
    for name, weight in qwen.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(weight)
    qwen.to(torch.bfloat16).save_pretrained(directory / "qwen", max_shard_size="100KB")
    LlamaForCausalLM(LlamaConfig(**shape)).save_pretrained(directory / "llama")
    return directory


@pytest.mark.parametrize("kind", ["qwen", "llama"])
def test_it_computes_the_same(made: Path, tmp_path: Path, kind: str) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    heads = pad_model(made / kind, tmp_path / "padded", 8)
    assert heads == Heads(before=14, after=16, key_value=2, size=8)
    tokens = torch.randint(0, 96, (3, 40))
    before, after = (
        AutoModelForCausalLM.from_pretrained(place, dtype=torch.float32)(tokens).logits
        for place in (made / kind, tmp_path / "padded")
    )
    assert torch.allclose(before, after, atol=1e-5)
    assert before.std() > 0.05, "logits that are all alike would prove nothing"
    config = json.loads((tmp_path / "padded" / "config.json").read_text())
    assert (config["num_attention_heads"], config["head_dim"], config["architectures"]) == (16, 8, ["LlamaForCausalLM"])


def test_all_its_files_are_whole_and_named_in_the_index(made: Path, tmp_path: Path) -> None:
    from engine_host.preflight.weights import check_weights

    pad_model(made / "qwen", tmp_path / "padded", 8)
    weights, findings = check_weights(tmp_path / "padded", "the model")
    assert findings == [] and weights is not None
    files = sorted((tmp_path / "padded").glob("*.safetensors"))
    assert len(files) > 1
    index = json.loads((tmp_path / "padded" / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == weights.total_bytes
    assert (tmp_path / "padded" / "generation_config.json").exists()


def test_the_command_says_what_came_of_it(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [str(made / "llama"), str(tmp_path / "padded"), "--ranks", "8"]
    assert main(words) == EXIT_DONE
    assert "14 heads are now 16, 2 a GPU" in capsys.readouterr().out
    assert main(words) == EXIT_INVALID
    said = capsys.readouterr().err
    assert "exists" in said and "Traceback" not in said
    assert not list(tmp_path.glob(".*")), "nothing half done is left"


def test_a_file_that_was_cut_off_is_named(made: Path, tmp_path: Path) -> None:
    shutil.copytree(made / "llama", tmp_path / "cut")
    file = tmp_path / "cut" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(OperatorError, match=r"model\.safetensors") as told:
        pad_model(tmp_path / "cut", tmp_path / "padded", 8)
    assert told.value.remedy == "download it again"
    assert [found.name for found in tmp_path.iterdir()] == ["cut"]
