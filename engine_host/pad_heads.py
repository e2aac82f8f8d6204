"""Adds attention heads of zeros to a model, so that more GPUs can share it. What it computes stays the same.

    python -m engine_host.pad_heads SOURCE TARGET --ranks 8

Tensor parallelism gives every GPU the same number of heads, and a draft is spread over all the GPUs of its target: the
28 heads of Qwen2.5-7B cannot be shared by eight, 32 can. A head whose query rows and output columns are zeros adds
nothing to any token. Heads that share a key-value head lie together, so each such group grows at its end.

Shard by shard, with one of them in memory. The result is of Llama's architecture, which is Qwen2's with every choice in
its config.json.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine_host.preflight.files import find_model
from engine_host.preflight.weights import INDEX
from engine_host.protocol.errors import EXIT_DONE, EXIT_FAILED, OperatorError

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

    def grown(self, rows: Any) -> Any:
        """A tensor of `rows` [heads x size, ...] with zeros for the new heads at the end of every group."""
        groups = rows.reshape(self.key_value, self.before // self.key_value * self.size, *rows.shape[1:])
        wider = rows.new_zeros(self.key_value, self.after // self.key_value * self.size, *rows.shape[1:])
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
    from safetensors import SafetensorError

    if not files:
        raise OperatorError(f"there are no *.safetensors in {source}", "download the model in that format")
    placed: dict[str, str] = {}
    total_bytes = 0
    for file in files:
        try:
            written = _pad_file(file, part / file.name, heads, adds_bias=config["model_type"] == "qwen2")
        except SafetensorError as error:
            shutil.rmtree(part, ignore_errors=True)
            raise OperatorError(f"{file}: {error}", "download it again") from error
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
    from safetensors import safe_open
    from safetensors.torch import save_file

    padded: dict[str, Any] = {}
    with safe_open(source, "pt") as weights:
        metadata = weights.metadata()
        for name in weights.keys():  # noqa: SIM118 - it is no mapping
            tensor = weights.get_tensor(name)
            if _QUERY.search(name):
                tensor = heads.grown(tensor)
            elif _OUTPUT.search(name):
                tensor = heads.grown(tensor.T).T.contiguous()
                if adds_bias:
                    # Llama with biases has one here too; Qwen2 has none, which is one of zeros.
                    padded[name.replace(".weight", ".bias")] = tensor.new_zeros(tensor.shape[0])
            padded[name] = tensor
    save_file(padded, target, metadata or {"format": "pt"})
    return {name: tensor.nbytes for name, tensor in padded.items()}


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
