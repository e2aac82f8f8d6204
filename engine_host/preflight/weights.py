"""Weights of a model directory: every shard there, every header readable, every file as long as its header says.

Only headers are read (the first 8 bytes tell their length, JSON follows), so a 140 GB model takes milliseconds. A
truncated download and a Git LFS pointer are the two faults that otherwise show after minutes of loading.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine_host.protocol.profiles import Finding

from .findings import amount, error, several

INDEX = "model.safetensors.index.json"

MAX_HEADER_BYTES = 100 << 20
"""The format's own limit; a longer one is no safetensors file."""

_LFS_POINTER = b"version https://git-lfs"
_OTHER_FORMATS = ("*.bin", "*.pt", "*.pth", "*.gguf")
"""Formats that vLLM also loads and that have no header to check: only their presence and size are known."""


@dataclass(frozen=True)
class Weights:
    """What the files hold; sizes are on disk, before vLLM converts them."""

    bytes_by_dtype: Mapping[str, int] = field(default_factory=dict)
    """By safetensors' names (`BF16`, `F8_E4M3`); `unknown` for formats without a header."""

    @property
    def total_bytes(self) -> int:
        return sum(self.bytes_by_dtype.values())


def check_weights(directory: Path, what: str) -> tuple[Weights | None, list[Finding]]:
    """The weights in `directory`, and what is wrong with them. `what` names the model in findings ("the draft model").

    None when their size cannot be known.
    """
    index = directory / INDEX
    named: set[str] = set()
    placed: dict[str, str] = {}
    if index.exists():
        placed, broken = _read_index(index, what)
        if broken is not None:
            return None, [broken]
        named = set(placed.values())
    missing = sorted(name for name in named if not (directory / name).exists())
    if missing:
        return None, [
            error(
                "weights.shard_missing",
                f"{what}: {len(missing)} of {len(named)} weight files named in {INDEX} are not in {directory}: "
                f"{several(missing)}",
                "download the model again; a download that was cut off leaves files out",
            )
        ]
    files = sorted(directory / name for name in named) or _safetensors(directory)
    if not files:
        return _other_formats(directory, what)
    sizes: Counter[str] = Counter()
    findings: list[Finding] = []
    held: dict[str, set[str]] = {}
    for file in files:
        header, fault = _read_header(file, what)
        if fault is not None:
            findings.append(fault)
            continue
        held[file.name] = set(header)
        for tensor in header.values():
            start, end = tensor["data_offsets"]
            sizes[tensor["dtype"]] += end - start
    if not findings:
        lost = sorted(tensor for tensor, name in placed.items() if tensor not in held[name])
        if lost:
            findings.append(
                error(
                    "weights.tensor_missing",
                    f"{what}: {len(lost)} tensors named in {INDEX} are not in their files: {several(lost)}",
                    "the files are of different versions of the model: download it again",
                )
            )
    return (None if findings else Weights(dict(sizes))), findings


def _safetensors(directory: Path) -> list[Path]:
    """Without an index: vLLM loads `*.safetensors`, and not Mistral's second copy when both are there."""
    files = sorted(directory.glob("*.safetensors"))
    others = [file for file in files if not file.name.startswith("consolidated")]
    return others or files


def _other_formats(directory: Path, what: str) -> tuple[Weights | None, list[Finding]]:
    for pattern in _OTHER_FORMATS:
        if files := [file for file in directory.glob(pattern) if file.is_file()]:
            return Weights({"unknown": sum(file.stat().st_size for file in files)}), []
    return None, [
        error(
            "weights.missing",
            f"{what}: no weight file (*.safetensors, *.bin, *.pt, *.gguf) in {directory}",
            'download the weights, or set load_format = "dummy" in [engine] to measure speed without them',
        )
    ]


def _read_index(index: Path, what: str) -> tuple[dict[str, str], Finding | None]:
    try:
        placed = json.loads(index.read_bytes())["weight_map"]
        if not isinstance(placed, dict) or not all(isinstance(name, str) for name in placed.values()):
            raise ValueError("weight_map is no table of file names")
        return placed, None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as fault:
        return {}, error("weights.index_broken", f"{what}: {index} cannot be read: {fault}", "download that file again")


def _read_header(file: Path, what: str) -> tuple[dict[str, Any], Finding | None]:
    """The tensors of a safetensors file by name, or the finding that says what is wrong with it."""
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            start = stream.read(8)
            if start + stream.read(len(_LFS_POINTER) - 8) == _LFS_POINTER:
                return {}, error(
                    "weights.lfs_pointer",
                    f"{what}: {file} is a Git LFS pointer of {size} bytes, not the weights",
                    f"fetch the content: git -C {file.parent} lfs pull",
                )
            length = int.from_bytes(start, "little")
            if len(start) < 8 or not 2 <= length <= MAX_HEADER_BYTES:
                raise ValueError("its first 8 bytes are no header length")
            if length + 8 > size:
                return {}, _truncated(file, what, size, length + 8, at_least=True)
            stream.seek(8)
            header = json.loads(stream.read(length))
        header.pop("__metadata__", None)
        end = max((tensor["data_offsets"][1] for tensor in header.values()), default=0)
        for tensor in header.values():
            if tensor["data_offsets"][0] > tensor["data_offsets"][1] or not isinstance(tensor["dtype"], str):
                raise ValueError("a tensor ends before it begins")
    except (OSError, ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError) as fault:
        return {}, error(
            "weights.header_broken", f"{what}: {file} is no readable safetensors file: {fault}", "download it again"
        )
    expected = 8 + length + end
    if size < expected:
        return {}, _truncated(file, what, size, expected)
    if size > expected:
        return {}, error(
            "weights.too_long",
            f"{what}: {file} has {size - expected:,} bytes after its last tensor, and the loader refuses that",
            "download it again",
        )
    return header, None


def _truncated(file: Path, what: str, size: int, expected: int, at_least: bool = False) -> Finding:
    more = "at least " if at_least else ""
    return error(
        "weights.truncated",
        f"{what}: {file} has {size:,} bytes ({amount(size)}), its header says {more}{expected:,}",
        "download it again; the copy was cut off",
    )
