"""The conversion of the demo model's weights, on a tiny llama-shaped GGUF file made here."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

gguf = pytest.importorskip("gguf")
safetensors = pytest.importorskip("safetensors")

from engine_host.demo import gguf_llama  # noqa: E402  (needs numpy, which comes with the host)

HEADS, KV_HEADS, HEAD_DIM, HIDDEN, FFN, VOCAB = 4, 2, 8, 32, 64, 16


def llama_cpp_permute(weight: np.ndarray, heads: int) -> np.ndarray:
    """As llama.cpp's convert_hf_to_gguf.py does it (`LlamaModel.permute`)."""
    return (
        weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)
    )


def tiny_weights() -> dict[str, np.ndarray]:
    dice = np.random.default_rng(3)
    shapes = {
        "token_embd.weight": (VOCAB, HIDDEN),
        "output_norm.weight": (HIDDEN,),
        "blk.0.attn_norm.weight": (HIDDEN,),
        "blk.0.attn_q.weight": (HEADS * HEAD_DIM, HIDDEN),
        "blk.0.attn_k.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
        "blk.0.attn_v.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
        "blk.0.attn_output.weight": (HIDDEN, HIDDEN),
        "blk.0.ffn_norm.weight": (HIDDEN,),
        "blk.0.ffn_gate.weight": (FFN, HIDDEN),
        "blk.0.ffn_up.weight": (FFN, HIDDEN),
        "blk.0.ffn_down.weight": (HIDDEN, FFN),
    }
    return {name: dice.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def write_gguf(
    path: Path, weights: dict[str, np.ndarray], architecture: str = "llama", raw: dict[str, Any] | None = None
) -> None:
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_vocab_size(VOCAB)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FFN)
    writer.add_block_count(1)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_context_length(128)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(100000.0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    for name, weight in weights.items():
        writer.add_tensor(name, weight, raw_dtype=(raw or {}).get(name))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def read_bfloat16(path: Path) -> dict[str, np.ndarray]:
    tensors = {}
    for name, entry in safetensors.deserialize(path.read_bytes()):
        assert entry["dtype"] == "BF16"
        bits = np.frombuffer(bytes(entry["data"]), dtype=np.uint16).astype(np.uint32) << 16
        tensors[name] = bits.view(np.float32).reshape(entry["shape"])
    return tensors


@pytest.mark.parametrize("heads", [1, 3, 9])
def test_unpermute_undoes_what_llama_cpp_did(heads: int) -> None:
    weight = np.arange(heads * 8 * 5, dtype=np.float32).reshape(heads * 8, 5)
    assert np.array_equal(gguf_llama.unpermute(llama_cpp_permute(weight, heads), heads), weight)


@pytest.mark.parametrize(
    ("value", "bits"),
    [
        (1.0, 0x3F80),
        (-2.0, 0xC000),
        (1.0 + 2**-8, 0x3F80),  # halfway: to the even neighbour, down
        (1.0 + 3 * 2**-8, 0x3F82),  # halfway: to the even neighbour, up
        (1.0 + 2**-8 + 2**-20, 0x3F81),
        (0.0, 0),
    ],
)
def test_bfloat16_rounds_to_nearest_even(value: float, bits: int) -> None:
    assert gguf_llama.bfloat16_bits(np.array([value]))[0] == bits


def test_a_converted_model_has_hugging_face_names_and_the_original_row_order(tmp_path: Path) -> None:
    weights = tiny_weights()
    stored = dict(weights)
    stored["blk.0.attn_q.weight"] = llama_cpp_permute(weights["blk.0.attn_q.weight"], HEADS)
    stored["blk.0.attn_k.weight"] = llama_cpp_permute(weights["blk.0.attn_k.weight"], KV_HEADS)
    write_gguf(tmp_path / "tiny.gguf", stored)

    gguf_llama.convert(tmp_path / "tiny.gguf", tmp_path)

    converted = read_bfloat16(tmp_path / "model.safetensors")
    assert converted.keys() == {gguf_llama.hugging_face_name(name) for name in weights}
    assert "lm_head.weight" not in converted
    for name, weight in weights.items():
        np.testing.assert_allclose(converted[gguf_llama.hugging_face_name(name)], weight, rtol=2**-8)


def test_quantised_weights_are_dequantised(tmp_path: Path) -> None:
    weights = tiny_weights()
    q4_1 = gguf.GGMLQuantizationType.Q4_1
    quantised = gguf.quantize(weights["blk.0.ffn_up.weight"], q4_1)
    write_gguf(tmp_path / "tiny.gguf", weights | {"blk.0.ffn_up.weight": quantised}, raw={"blk.0.ffn_up.weight": q4_1})

    gguf_llama.convert(tmp_path / "tiny.gguf", tmp_path)

    converted = read_bfloat16(tmp_path / "model.safetensors")["model.layers.0.mlp.up_proj.weight"]
    np.testing.assert_allclose(converted, gguf.dequantize(quantised, q4_1), rtol=2**-8)
    assert np.abs(converted - weights["blk.0.ffn_up.weight"]).max() < 0.3


def test_the_configuration_comes_from_the_metadata(tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf", tiny_weights())
    gguf_llama.convert(tmp_path / "tiny.gguf", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["rope_theta"] == 100000.0
    assert config["rms_norm_eps"] == 1e-5
    assert (config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]) == (4, 2, 8)
    assert config["tie_word_embeddings"] is True
    generation = json.loads((tmp_path / "generation_config.json").read_text())
    assert generation == {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}


def test_another_architecture_is_refused_by_name(tmp_path: Path) -> None:
    write_gguf(tmp_path / "other.gguf", tiny_weights(), architecture="gpt2")
    with pytest.raises(gguf_llama.UnsupportedGguf, match="'gpt2', expected 'llama'"):
        gguf_llama.convert(tmp_path / "other.gguf", tmp_path)


@pytest.mark.parametrize(
    "name", ["output.weight", "blk.0.attn_q.bias", "rope_freqs.weight", "blk.0.ffn_gate_exps.weight"]
)
def test_a_tensor_without_a_place_is_an_error_not_a_guess(name: str) -> None:
    with pytest.raises(gguf_llama.UnsupportedGguf, match=name):
        gguf_llama.hugging_face_name(name)
