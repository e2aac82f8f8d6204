"""Where a profile's models lie and whether they are whole: configuration, weights, tokenizer, chat template.

A name that is no directory is a repository of the Hugging Face Hub: its snapshot in the local cache is checked like a
directory, and one that is not there is told, with whether the Hub can be reached at all. Nothing is downloaded.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from engine_host.profiles.profile import unset_variable
from engine_host.protocol.profiles import Finding

from .findings import error, warning
from .weights import Weights, check_weights

HUB_CONNECT_S = 2.0
"""A Hub that takes longer to answer is as good as away; the engine itself would try for minutes."""

METHODS_WITHOUT_DRAFT = frozenset({"ngram", "[ngram]", "ngram_gpu", "suffix", "mtp", "custom_class"})
"""Speculation that loads no second model from `speculative_config.model`."""

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "tekken.json", "vocab.json", "tiktoken.model", "vocab.txt")
_CONFIGS = ("config.json", "params.json")
"""Hugging Face's, and Mistral's own."""
_CLOUD = ("s3://", "gs://", "az://", "r2://")


@dataclass(frozen=True)
class ModelFiles:
    """One model as it lies on this machine."""

    name: str
    """As the profile says."""
    directory: Path | None = None
    """None when it is not on this machine."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """Its config.json; empty when unreadable."""
    weights: Weights | None = None

    @property
    def vocab_size(self) -> int | None:
        """Rows of the embedding: the tokens there are, and padding."""
        return self.number("vocab_size")

    def number(self, key: str) -> int | None:
        """A number of its config.json, or of the text part of a model for several media."""
        nested = self.config.get("text_config")
        for table in (self.config, nested if isinstance(nested, Mapping) else {}):
            if type(value := table.get(key)) is int:
                return value
        return None

    @property
    def tokenizer_json(self) -> Path | None:
        path = self.directory / "tokenizer.json" if self.directory else None
        return path if path is not None and path.is_file() else None


@dataclass(frozen=True)
class ProfileFiles:
    model: ModelFiles
    tokenizer: ModelFiles
    """Of the target: the model's own directory unless `[engine] tokenizer` names another."""
    draft: ModelFiles | None = None
    findings: list[Finding] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)
    is_buildable: bool = True
    """Whether a configuration can be built at all: there are models to read it from."""


def check_files(engine: Mapping[str, Any], server: Mapping[str, Any]) -> ProfileFiles:
    """Look at every file that the profile means. Blocks for at most `HUB_CONNECT_S` beside the disk."""
    findings: list[Finding] = []
    unchecked: list[str] = []
    name = str(engine["model"])
    needs_weights = engine.get("load_format") != "dummy"
    model = _check_model(name, "the model", engine.get("revision"), needs_weights, findings, unchecked)
    tokenizer = model
    if isinstance(other := engine.get("tokenizer"), str) and other != name:
        tokenizer = ModelFiles(name=other, directory=find_model(other, engine.get("tokenizer_revision")))
        if tokenizer.directory is None:
            _tell_absent(other, "the tokenizer", findings, unchecked)
    if tokenizer.directory is not None and not engine.get("skip_tokenizer_init"):
        _check_tokenizer(tokenizer.directory, findings)
        _check_chat_template(tokenizer.directory, server.get("chat_template"), findings)
    draft = None
    if (draft_name := draft_model(engine)) is not None:
        table = engine["speculative_config"]
        draft_weights = needs_weights and (table.get("draft_load_config") or {}).get("load_format") != "dummy"
        draft = _check_model(draft_name, "the draft model", table.get("revision"), draft_weights, findings, unchecked)
    is_buildable = not any(finding.id.startswith("model.") for finding in findings)
    return ProfileFiles(model, tokenizer, draft, findings, unchecked, is_buildable)


def draft_model(engine: Mapping[str, Any]) -> str | None:
    """The second model that speculation loads, if there is one."""
    table = engine.get("speculative_config")
    if not isinstance(table, Mapping) or table.get("method") in METHODS_WITHOUT_DRAFT:
        return None
    name = table.get("model")
    return name if isinstance(name, str) and name not in METHODS_WITHOUT_DRAFT else None


def find_model(name: str, revision: Any = None) -> Path | None:
    """The directory (or the single file's) of a model on this machine: a path, or a snapshot in the Hub's cache."""
    path = Path(name)
    if path.is_dir():
        return path
    if path.is_file():
        return path.parent
    if name.count("/") != 1 or name.startswith(_CLOUD):
        return None
    repository = _hub_cache() / f"models--{name.replace('/', '--')}"
    wanted = revision if isinstance(revision, str) else "main"
    reference = repository / "refs" / wanted
    commit = reference.read_text().strip() if reference.is_file() else wanted
    snapshot = repository / "snapshots" / commit
    return snapshot if snapshot.is_dir() else None


def has_tokenizer(directory: Path) -> bool:
    """Whether a tokenizer is there, in any form that vLLM reads. A GGUF file brings its own."""
    return any((directory / name).is_file() for name in _TOKENIZER_FILES) or any(directory.glob("*.gguf"))


def _hub_cache() -> Path:
    """As huggingface_hub looks it up."""
    environment = os.environ
    if cache := environment.get("HF_HUB_CACHE") or environment.get("HUGGINGFACE_HUB_CACHE"):
        return Path(cache)
    home = environment.get("HF_HOME")
    return Path(home) / "hub" if home else Path.home() / ".cache" / "huggingface" / "hub"


def _check_model(
    name: str, what: str, revision: Any, needs_weights: bool, findings: list[Finding], unchecked: list[str]
) -> ModelFiles:
    directory = find_model(name, revision)
    if directory is None:
        _tell_absent(name, what, findings, unchecked)
        return ModelFiles(name)
    if Path(name).is_file():  # one GGUF file holds everything
        return ModelFiles(name, directory, {}, Weights({"unknown": Path(name).stat().st_size}))
    config = _read_config(directory, what, findings)
    weights = None
    if needs_weights:
        weights, faults = check_weights(directory, what)
        findings += faults
    return ModelFiles(name, directory, config, weights)


def _tell_absent(name: str, what: str, findings: list[Finding], unchecked: list[str]) -> None:
    """`name` is no directory here and not in the Hub's cache."""
    if unset := unset_variable(name):
        fact, remedy = unset
        findings.append(error("model.variable", f"{what}: {name} {fact}", remedy))
        return
    if name.startswith(_CLOUD):
        unchecked.append(f"{what}: {name} is in a cloud store")
        return
    if name.startswith(("/", ".", "~")) or name.count("/") > 1:
        findings.append(error("model.missing", f"{what}: there is no directory {name}", f"see: ls {Path(name).parent}"))
        return
    if os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on"):
        findings.append(
            error(
                "model.not_cached",
                f"{what}: {name} is not in {_hub_cache()}, and HF_HUB_OFFLINE forbids downloading it",
                f"run: HF_HUB_OFFLINE=0 hf download {name}; or give a directory",
            )
        )
        return
    if (fault := _hub_fault()) is not None:
        findings.append(
            error(
                "model.hub_unreachable",
                f"{what}: {name} is not in {_hub_cache()}, and the Hub cannot be reached: {fault}",
                f"copy the model to this machine and give its directory, or run: hf download {name} where there is a "
                "network",
            )
        )
        return
    findings.append(
        warning(
            "files.download",
            f"{what}: {name} is not on this machine; the start will download it, with no engine serving meanwhile",
            f"first run: hf download {name}",
        )
    )
    unchecked.append(f"files of {what} ({name}): not downloaded yet")


def _hub_fault() -> str | None:
    """Why the Hub cannot be reached; None when it answers, or when a proxy stands between and cannot be judged."""
    address = urlsplit(os.environ.get("HF_ENDPOINT") or "https://huggingface.co")
    if any(os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")):
        return None
    host = address.hostname or "huggingface.co"
    try:
        with socket.create_connection((host, address.port or 443), timeout=HUB_CONNECT_S):
            return None
    except OSError as fault:
        return f"{host}: {fault.strerror or fault}"


def _read_config(directory: Path, what: str, findings: list[Finding]) -> Mapping[str, Any]:
    for name in _CONFIGS:
        path = directory / name
        if not path.is_file():
            continue
        try:
            config = json.loads(path.read_bytes())
            if not isinstance(config, dict):
                raise ValueError("it is no JSON object")
            return config
        except (OSError, ValueError, RecursionError) as fault:
            findings.append(
                error("model.config_broken", f"{what}: {path} cannot be read: {fault}", "download that file again")
            )
            return {}
    if not any(directory.glob("*.gguf")):
        findings.append(
            error(
                "model.config_missing",
                f"{what}: {directory} has no config.json",
                f"is it the directory of a model? see: ls {directory}",
            )
        )
    return {}


def _check_tokenizer(directory: Path, findings: list[Finding]) -> None:
    if has_tokenizer(directory):
        return
    findings.append(
        error(
            "tokenizer.missing",
            f"no tokenizer file ({', '.join(_TOKENIZER_FILES[:3])}) in {directory}",
            'copy tokenizer.json there, or set tokenizer = "DIRECTORY" in [engine]',
        )
    )


def _check_chat_template(directory: Path, given: Any, findings: list[Finding]) -> None:
    if isinstance(given, str) and given:
        if "{" not in given and "\n" not in given and not Path(given).expanduser().is_file():
            findings.append(
                error(
                    "chat_template.missing",
                    f"server.chat_template: there is no file {given}",
                    "give the path of a Jinja file, or leave it out for the model's own template",
                )
            )
        return
    if (directory / "chat_template.jinja").is_file() or (directory / "chat_template.json").is_file():
        return
    try:
        config = json.loads((directory / "tokenizer_config.json").read_bytes())
    except (OSError, ValueError, RecursionError):
        config = {}
    if isinstance(config, dict) and config.get("chat_template"):
        return
    if any((directory / name).is_file() for name in ("tekken.json", "params.json")) or any(directory.glob("*.gguf")):
        return  # brings its own
    findings.append(
        warning(
            "chat_template.none",
            f"the model in {directory} has no chat template: /v1/chat/completions will answer 400",
            "set [server] chat_template to a Jinja file, or use /v1/completions only",
        )
    )
