"""The draft for the demo model: the same tensors, the projections coarser."""

import json
from pathlib import Path

import numpy as np
import pytest

safetensors = pytest.importorskip("safetensors")

from engine_host.demo import draft  # noqa: E402  (needs numpy, which comes with the host)
from engine_host.demo.gguf_llama import bfloat16_bits  # noqa: E402

SHAPES = {
    "model.embed_tokens.weight": (16, 128),
    "model.layers.0.self_attn.q_proj.weight": (8, 128),
    "model.norm.weight": (128,),
}


def write_model(directory: Path) -> dict[str, np.ndarray]:
    """A directory with tiny random weights, and their bfloat16 bits by name."""
    dice = np.random.default_rng(5)
    tensors = {name: bfloat16_bits(dice.normal(size=shape)) for name, shape in SHAPES.items()}
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for name, bits in tensors.items():
        header[name] = {"dtype": "BF16", "shape": list(bits.shape), "data_offsets": [end, end + bits.nbytes]}
        end += bits.nbytes
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    content = len(encoded).to_bytes(8, "little") + encoded + b"".join(bits.tobytes() for bits in tensors.values())
    directory.mkdir()
    (directory / draft.WEIGHTS).write_bytes(content)
    (directory / "tokenizer.json").write_text("{}")
    (directory / "manifest.json").write_text("{}")
    return tensors


def read_model(directory: Path) -> dict[str, np.ndarray]:
    found = safetensors.deserialize((directory / draft.WEIGHTS).read_bytes())
    return {name: np.frombuffer(bytes(t["data"]), np.uint16).reshape(t["shape"]) for name, t in found}


@pytest.fixture
def written(tmp_path: Path) -> tuple[dict[str, np.ndarray], Path]:
    tensors = write_model(tmp_path / "model")
    (tmp_path / "draft").mkdir()
    draft.write_draft(tmp_path / "model", tmp_path / "draft")
    return tensors, tmp_path / "draft"


def test_only_the_projections_change(written: tuple[dict[str, np.ndarray], Path]) -> None:
    before, directory = written
    after = read_model(directory)
    assert after.keys() == before.keys()
    changed = [name for name in before if not np.array_equal(before[name], after[name])]
    assert changed == ["model.layers.0.self_attn.q_proj.weight"]


def test_the_tokenizer_comes_along_and_the_manifest_does_not(written: tuple[dict[str, np.ndarray], Path]) -> None:
    _, directory = written
    assert sorted(file.name for file in directory.iterdir()) == ["model.safetensors", "tokenizer.json"]


def test_a_block_has_as_many_values_as_its_bits_allow_and_keeps_its_ends() -> None:
    weight = np.random.default_rng(7).normal(size=(3, 2 * draft.BLOCK)).astype(np.float32)
    coarse = draft.rounded(weight).reshape(-1, draft.BLOCK)
    blocks = weight.reshape(-1, draft.BLOCK)
    for block, original in zip(coarse, blocks, strict=True):
        assert len(np.unique(block)) <= 2**draft.BITS
        assert (block.min(), block.max()) == pytest.approx((original.min(), original.max()), abs=1e-5)
    step = (blocks.max(-1) - blocks.min(-1)) / (2**draft.BITS - 1)
    assert (np.abs(coarse - blocks).max(-1) <= step / 2 + 1e-6).all()


def test_a_block_of_one_value_stays() -> None:
    weight = np.full((1, draft.BLOCK), 0.5, np.float32)
    assert np.array_equal(draft.rounded(weight), weight)
