"""Adds attention heads of zeros to a model, so that more GPUs can share it. What it computes stays the same.

    python -m engine_host.pad_heads SOURCE TARGET --ranks 8

Tensor parallelism gives every GPU the same number of heads, and a draft is spread over all the GPUs of its target: the
28 heads of Qwen2.5-7B cannot be shared by eight, 32 can. A head whose query rows and output columns are zeros adds
nothing to any token. Heads that share a key-value head lie together, so each such group grows at its end.

Reads and writes safetensors by hand and tensor by tensor, whatever their float type, with no more than one in memory:
15 GB take a minute. The result is of Llama's architecture, which is Qwen2's with every choice in its config.json.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from engine_host.preflight.files import find_model
from engine_host.preflight.weights import INDEX
from engine_host.protocol.errors import EXIT_DONE, EXIT_FAILED, OperatorError

Bytes = npt.NDArray[np.uint8]

_QUERY = re.compile(r"\.self_attn\.q_proj\.(weight|bias)$")
_OUTPUT = re.compile(r"\.self_attn\.o_proj\.weight$")
_OF_QWEN_ALONE = ("use_sliding_window", "sliding_window", "max_window_layers", "layer_types")


@dataclass(frozen=True)
class Heads:
    """Of one attention layer."""

    before: int
    after: int
    key_value: int
    size: int
    """Of each head, in elements."""

    def grown(self, rows: Bytes) -> Bytes:
        """`rows` [heads x size, ...] with zeros for the new heads at the end of every group."""
        groups = rows.reshape(self.key_value, self.before // self.key_value * self.size, -1)
        wider = np.zeros((self.key_value, self.after // self.key_value * self.size, groups.shape[2]), np.uint8)
        wider[:, : groups.shape[1]] = groups
        return wider.reshape(self.after * self.size, *rows.shape[1:])


def heads_for(config: Mapping[str, Any], ranks: int) -> Heads:
    """The fewest heads that `ranks` GPUs can share. Raises `OperatorError` for a model that this cannot be done to."""
    kind = config.get("model_type")
    if kind not in ("qwen2", "llama") or config.get("use_sliding_window") or "quantization_config" in config:
        raise OperatorError(
            f"this is a model of type {kind!r}, quantised or with a sliding window",
            "take the unquantised weights of a Qwen2, Qwen2.5 or Llama model",
        )
    before = int(config["num_attention_heads"])
    key_value = int(config.get("num_key_value_heads") or before)
    if before % key_value or (ranks % key_value and key_value % ranks):
        raise OperatorError(
            f"{key_value} key-value heads cannot be shared by {ranks} GPUs, whatever the number of heads",
            f"take a number of GPUs that divides {key_value}, or a multiple of it",
        )
    step = math.lcm(ranks, key_value)
    size = int(config.get("head_dim") or config["hidden_size"] // before)
    return Heads(before, -(-before // step) * step, key_value, size)


def pad_model(source: Path, target: Path, ranks: int) -> Heads:
    """Write the model in `source` to `target`, which appears when it is complete. Raises `OperatorError`."""
    if target.exists():
        raise OperatorError(f"{target} exists", "name another directory, or remove that one")
    config = json.loads((source / "config.json").read_bytes())
    heads = heads_for(config, ranks)
    part = target.with_name(f".{target.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    files = sorted(source.glob("*.safetensors"))
    if not files:
        raise OperatorError(f"there are no *.safetensors in {source}", "download the model in that format")
    placed: dict[str, str] = {}
    total_bytes = 0
    for file in files:
        written = _pad_file(file, part / file.name, heads, adds_bias=config["model_type"] == "qwen2")
        placed |= dict.fromkeys(written, file.name)
        total_bytes += sum(written.values())
    if len(files) > 1:
        index = {"metadata": {"total_size": total_bytes}, "weight_map": dict(sorted(placed.items()))}
        (part / INDEX).write_text(json.dumps(index, indent=1))
    (part / "config.json").write_text(json.dumps(padded_config(config, heads), indent=1))
    for other in source.iterdir():
        if other.is_file() and other.suffix != ".safetensors" and not (part / other.name).exists():
            shutil.copyfile(other, part / other.name)
    part.rename(target)
    return heads


def padded_config(config: Mapping[str, Any], heads: Heads) -> dict[str, Any]:
    kept = {key: value for key, value in config.items() if key not in _OF_QWEN_ALONE}
    is_qwen = config["model_type"] == "qwen2"
    return {
        **kept,
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "num_attention_heads": heads.after,
        "num_key_value_heads": heads.key_value,
        "head_dim": heads.size,
        "attention_bias": is_qwen or bool(config.get("attention_bias")),
        "mlp_bias": bool(config.get("mlp_bias")),
    }


def _pad_file(source: Path, target: Path, heads: Heads, *, adds_bias: bool) -> dict[str, int]:
    """Tensor -> its size in bytes, as written."""
    data = np.memmap(source, dtype=np.uint8, mode="r")
    data_at = 8 + int.from_bytes(data[:8].tobytes(), "little")
    header: dict[str, Any] = json.loads(data[8:data_at].tobytes())
    metadata = header.pop("__metadata__", {"format": "pt"})
    new: dict[str, Any] = {"__metadata__": metadata}
    at = 0
    for name, entry, _ in _tensors(header, data[data_at:], heads, adds_bias, with_data=False):
        new[name] = {**entry, "data_offsets": [at, at := at + _bytes_of(entry)]}
    text = json.dumps(new).encode()
    text += b" " * (-len(text) % 8)
    with target.open("wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        for _, _, content in _tensors(header, data[data_at:], heads, adds_bias, with_data=True):
            out.write(content)
    return {name: _bytes_of(entry) for name, entry in new.items() if name != "__metadata__"}


def _tensors(
    header: Mapping[str, Any], data: Bytes, heads: Heads, adds_bias: bool, *, with_data: bool
) -> Iterator[tuple[str, dict[str, Any], bytes]]:
    """Every tensor of the new file: name, dtype and shape, content. `adds_bias`: to the output projections."""
    for name, entry in header.items():
        start, end = entry["data_offsets"]
        shape, dtype = list(entry["shape"]), entry["dtype"]
        is_query, is_output = _QUERY.search(name), _OUTPUT.search(name)
        width = (end - start) // max(1, math.prod(shape))
        if is_query:
            new_shape = [heads.after * heads.size, *shape[1:]]
        else:
            new_shape = [*shape[:-1], heads.after * heads.size] if is_output else shape
        content = b""
        if with_data:
            elements = np.ascontiguousarray(data[start:end]).reshape(*shape, width)
            if is_query:
                elements = heads.grown(elements)
            elif is_output:
                elements = heads.grown(elements.swapaxes(0, 1)).swapaxes(0, 1)
            content = elements.tobytes()
        yield name, {"dtype": dtype, "shape": new_shape}, content
        if is_output and adds_bias:
            # Llama with biases has one here too; Qwen2 has none, which is one of zeros.
            bias = {"dtype": dtype, "shape": [shape[0]]}
            yield name.replace(".weight", ".bias"), bias, bytes(shape[0] * width) if with_data else b""


_WIDTHS = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I8": 1, "U8": 1, "BOOL": 1}


def _bytes_of(entry: Mapping[str, Any]) -> int:
    if (width := _WIDTHS.get(entry["dtype"])) is None:
        raise OperatorError(f"a tensor is of type {entry['dtype']}", "take the unquantised weights of the model")
    return int(width * math.prod(entry["shape"]))


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m engine_host.pad_heads", description=__doc__.split("\n")[0])
    parser.add_argument("source", help="a model's directory, or its name in the Hub's cache")
    parser.add_argument("target", type=Path, help="the directory to write")
    parser.add_argument("--ranks", type=int, required=True, help="GPUs that share it (tensor_parallel_size)")
    arguments = parser.parse_args(words)
    try:
        if (source := find_model(arguments.source)) is None:
            raise OperatorError(f"{arguments.source} is not on this machine", f"hf download {arguments.source}")
        heads = pad_model(source, arguments.target.expanduser(), arguments.ranks)
    except OperatorError as error:
        print(f"pad_heads: {error.fact}\n  {error.remedy}", file=sys.stderr)
        return error.exit_code
    except OSError as error:
        print(f"pad_heads: {error.filename or arguments.target}: {error.strerror}", file=sys.stderr)
        return EXIT_FAILED
    print(f"{arguments.target}: {heads.before} heads are now {heads.after}, {heads.after // arguments.ranks} a GPU")
    return EXIT_DONE


if __name__ == "__main__":
    sys.exit(main())
