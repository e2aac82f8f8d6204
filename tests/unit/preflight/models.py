"""Model directories small enough to make in a test: a real tokenizer.json, real safetensors files, a config.json."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

ALPHABET = sorted(ByteLevel.alphabet())
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MERGES = (("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"))
TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"


def write_tokenizer(
    path: Path,
    *,
    special: Sequence[str] = SPECIAL,
    extra: Sequence[str] = (),
    swap: tuple[str, str] | None = None,
    merges: Sequence[tuple[str, str]] = MERGES,
) -> None:
    """A byte-level BPE. `swap` exchanges the ids of two tokens; `extra` adds tokens at the end."""
    tokens = [*ALPHABET, *("".join(pair) for pair in MERGES)]
    vocab = {token: id for id, token in enumerate(tokens)}
    if swap is not None:
        vocab[swap[0]], vocab[swap[1]] = vocab[swap[1]], vocab[swap[0]]
    tokenizer = Tokenizer(BPE(vocab=vocab, merges=list(merges)))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevelDecoder()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in special])
    tokenizer.add_tokens(list(extra))
    tokenizer.save(str(path))


def safetensors_bytes(tensors: Mapping[str, tuple[str, int]]) -> bytes:
    """A file of zeros; `tensors` is name -> (dtype, bytes)."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, (dtype, size) in tensors.items():
        header[name] = {"dtype": dtype, "shape": [size // 2], "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes(at)


def make_model(
    directory: Path,
    *,
    vocab_size: int = 512,
    tensors: Mapping[str, tuple[str, int]] | None = None,
    shards: int = 1,
    config: Mapping[str, Any] | None = None,
    chat_template: str | None = TEMPLATE,
    **tokenizer: Any,
) -> Path:
    """`shards` above 1 spreads the tensors over files with an index; `tokenizer` goes to `write_tokenizer`."""
    directory.mkdir(parents=True)
    base = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": vocab_size}
    (directory / "config.json").write_text(json.dumps({**base, **(config or {})}))
    if chat_template is not None:
        (directory / "tokenizer_config.json").write_text(json.dumps({"chat_template": chat_template}))
    write_tokenizer(directory / "tokenizer.json", **tokenizer)
    tensors = tensors or {"model.embed": ("BF16", 64), "lm_head": ("BF16", 32)}
    if shards == 1:
        (directory / "model.safetensors").write_bytes(safetensors_bytes(tensors))
        return directory
    names = list(tensors)
    placed: dict[str, str] = {}
    for number in range(shards):
        file = f"model-{number + 1:05}-of-{shards:05}.safetensors"
        mine = {name: tensors[name] for name in names[number::shards]}
        (directory / file).write_bytes(safetensors_bytes(mine))
        placed |= dict.fromkeys(mine, file)
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": placed}))
    return directory
