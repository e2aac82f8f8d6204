"""Turns a llama-architecture GGUF file into the model directory that vLLM reads, without torch.

llama.cpp's conversion is undone: tensors get their Hugging Face names back, quantised weights become bfloat16, and
the rows of the Q and K projections, which llama.cpp reorders per head for its way of rotating, return to their order.
Only what the demo model needs is supported; anything else in the file is an error, never a guess.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

_LAYER = re.compile(r"blk\.(\d+)\.(\w+)\.weight")
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_TOP_NAMES = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}


class UnsupportedGguf(Exception):
    """The file is not the kind of model this module converts; the message says what differs."""


def hugging_face_name(name: str) -> str:
    """`blk.3.attn_q.weight` -> `model.layers.3.self_attn.q_proj.weight`. Raises `UnsupportedGguf`."""
    if top := _TOP_NAMES.get(name):
        return top
    if (match := _LAYER.fullmatch(name)) and (part := _LAYER_NAMES.get(match[2])):
        return f"model.layers.{match[1]}.{part}.weight"
    raise UnsupportedGguf(f"tensor {name} has no place in a llama model with tied embeddings")


def unpermute(weight: Array, heads: int) -> Array:
    """Undo llama.cpp's reordering of a Q or K projection, [heads * head_dim, hidden].

    llama.cpp rotates neighbouring rows (0, 1), (2, 3) ...; Hugging Face rotates row i with row i + head_dim / 2. Its
    converter therefore interleaves the two halves of every head; this takes them apart again.
    """
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def bfloat16_bits(values: Array) -> npt.NDArray[np.uint16]:
    """Round float32 to the nearest bfloat16, ties to even, as its 16 bits: numpy has no such type."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounding = ((bits >> np.uint32(16)) & np.uint32(1)) + np.uint32(0x7FFF)
    return ((bits + rounding) >> np.uint32(16)).astype(np.uint16)


def convert(source: Path, target: Path, report: Callable[[str], None] = lambda text: None) -> None:
    """Write `config.json`, `generation_config.json` and `model.safetensors` of `source` into the directory `target`."""
    from gguf import GGUFReader

    reader = GGUFReader(source)
    meta = {key: field.contents() for key, field in reader.fields.items() if not key.endswith((".tokens", ".merges"))}
    config = llama_config(meta)
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    (target / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    generation = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    (target / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n", encoding="utf-8")
    _write_safetensors(target / "model.safetensors", reader.tensors, heads, report)


def llama_config(meta: dict[str, Any]) -> dict[str, Any]:
    """The Hugging Face configuration that a GGUF file's metadata describes. Raises `UnsupportedGguf`."""
    if meta.get("general.architecture") != "llama":
        raise UnsupportedGguf(f"architecture is {meta.get('general.architecture')!r}, expected 'llama'")
    try:
        hidden, heads = meta["llama.embedding_length"], meta["llama.attention.head_count"]
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": meta["llama.vocab_size"],
            "hidden_size": hidden,
            "intermediate_size": meta["llama.feed_forward_length"],
            "num_hidden_layers": meta["llama.block_count"],
            "num_attention_heads": heads,
            "num_key_value_heads": meta["llama.attention.head_count_kv"],
            "head_dim": hidden // heads,
            "max_position_embeddings": meta["llama.context_length"],
            # Stored as float32; the shortest decimal that means the same is the one the model was made with.
            "rms_norm_eps": float(str(np.float32(meta["llama.attention.layer_norm_rms_epsilon"]))),
            "rope_theta": meta["llama.rope.freq_base"],
            "hidden_act": "silu",
            "attention_bias": False,
            "mlp_bias": False,
            "tie_word_embeddings": True,
            "bos_token_id": meta["tokenizer.ggml.bos_token_id"],
            "eos_token_id": meta["tokenizer.ggml.eos_token_id"],
            "pad_token_id": meta["tokenizer.ggml.padding_token_id"],
            "torch_dtype": "bfloat16",
        }
    except KeyError as missing:
        raise UnsupportedGguf(f"metadata key {missing.args[0]} is missing") from None


def _write_safetensors(path: Path, tensors: Any, heads: dict[str, int], report: Callable[[str], None]) -> None:
    """One tensor in memory at a time.

    Written by hand because safetensors' numpy door refuses bfloat16 and its torch door would import torch: the format
    is a little-endian length, a JSON header of that length, and the bytes.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for tensor in tensors:
        shape = [int(n) for n in reversed(tensor.shape)]  # GGUF lists the fastest dimension first
        start, end = end, end + 2 * int(np.prod(shape))
        entry = {"dtype": "BF16", "shape": shape, "data_offsets": [start, end]}
        header[hugging_face_name(tensor.name)] = entry
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)  # the data starts aligned
    with path.open("wb") as file:
        file.write(len(encoded).to_bytes(8, "little"))
        file.write(encoded)
        for number, bits in enumerate(_weights(tensors, heads), 1):
            report(f"converting weights, {number} of {len(tensors)}")
            file.write(bits.tobytes())


def _weights(tensors: Any, heads: dict[str, int]) -> Iterator[npt.NDArray[np.uint16]]:
    from gguf import dequantize

    for tensor in tensors:
        weight = dequantize(tensor.data, tensor.tensor_type)
        match = _LAYER.fullmatch(tensor.name)
        if match and (count := heads.get(match[2])):
            weight = unpermute(weight, count)
        yield bfloat16_bits(weight)
