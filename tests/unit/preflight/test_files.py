from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from engine_host.preflight.files import check_files, draft_model, find_model
from engine_host.protocol.events import Severity
from tests.unit.preflight.models import make_model


def ids(engine: dict[str, Any], server: dict[str, Any] | None = None) -> list[str]:
    return [finding.id for finding in check_files(engine, server or {}).findings]


def cached(cache: Path, name: str, **model: Any) -> Path:
    """A model in a Hub cache as huggingface_hub lays it out."""
    repository = cache / f"models--{name.replace('/', '--')}"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("abc123")
    return make_model(repository / "snapshots" / "abc123", **model)


@pytest.fixture(autouse=True)
def empty_hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    cache = tmp_path / "hub"
    monkeypatch.setenv("HF_HUB_CACHE", str(cache))
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    return cache


def test_a_whole_model_has_no_findings(tmp_path: Path) -> None:
    files = check_files({"model": str(make_model(tmp_path / "m", vocab_size=300))}, {})
    assert files.findings == [] and files.is_buildable
    assert files.model.vocab_size == 300
    assert files.model.weights is not None
    assert files.tokenizer is files.model


def test_a_directory_without_config_json_is_no_model(tmp_path: Path) -> None:
    model = make_model(tmp_path / "m")
    (model / "config.json").unlink()
    files = check_files({"model": str(model)}, {})
    assert [finding.id for finding in files.findings] == ["model.config_missing"]
    assert not files.is_buildable


@pytest.mark.parametrize("content", ["[1]", "[" * 3_000 + "]" * 3_000])
def test_a_broken_config_json_is_told(tmp_path: Path, content: str) -> None:
    model = make_model(tmp_path / "m")
    (model / "config.json").write_text(content)
    assert ids({"model": str(model)}) == ["model.config_broken"]


def test_dummy_weights_need_no_files(tmp_path: Path) -> None:
    model = make_model(tmp_path / "m")
    (model / "model.safetensors").unlink()
    assert ids({"model": str(model)}) == ["weights.missing"]
    assert ids({"model": str(model), "load_format": "dummy"}) == []


def test_a_model_without_tokenizer_files_is_an_error_unless_another_is_named(tmp_path: Path) -> None:
    model = make_model(tmp_path / "m")
    (model / "tokenizer.json").unlink()
    assert ids({"model": str(model)}) == ["tokenizer.missing"]
    assert ids({"model": str(model), "skip_tokenizer_init": True}) == []
    assert ids({"model": str(model), "tokenizer": str(make_model(tmp_path / "t"))}) == []


def test_a_model_without_chat_template_is_warned_about(tmp_path: Path) -> None:
    model = make_model(tmp_path / "m", chat_template=None)
    files = check_files({"model": str(model)}, {})
    assert [(finding.id, finding.severity) for finding in files.findings] == [("chat_template.none", Severity.WARNING)]
    (model / "chat_template.jinja").write_text("x")
    assert ids({"model": str(model)}) == []


def test_a_chat_template_of_the_profile_must_exist_or_be_inline(tmp_path: Path) -> None:
    model = str(make_model(tmp_path / "m", chat_template=None))
    assert ids({"model": model}, {"chat_template": str(tmp_path / "none.jinja")}) == ["chat_template.missing"]
    assert ids({"model": model}, {"chat_template": "{{ messages }}"}) == []
    (tmp_path / "some.jinja").write_text("x")
    assert ids({"model": model}, {"chat_template": str(tmp_path / "some.jinja")}) == []


def test_the_draft_model_is_checked_as_the_target_is(tmp_path: Path) -> None:
    target, draft = make_model(tmp_path / "m"), make_model(tmp_path / "d", shards=2)
    (draft / "model-00001-of-00002.safetensors").unlink()
    files = check_files({"model": str(target), "speculative_config": {"model": str(draft)}}, {})
    assert [finding.id for finding in files.findings] == ["weights.shard_missing"]
    assert "the draft model" in files.findings[0].text


@pytest.mark.parametrize(
    "table",
    [
        {"method": "ngram", "num_speculative_tokens": 5},
        {"model": "ngram"},
        {"method": "suffix"},
        {"method": "mtp", "model": "/somewhere"},
        "no table",
        None,
    ],
)
def test_speculation_without_a_second_model_has_no_draft(table: Any) -> None:
    assert draft_model({"model": "m", "speculative_config": table}) is None


def test_a_name_in_the_hub_cache_is_checked_like_a_directory(empty_hub_cache: Path) -> None:
    snapshot = cached(empty_hub_cache, "org/name")
    assert find_model("org/name") == snapshot
    assert find_model("org/name", "abc123") == snapshot
    assert find_model("org/name", "other") is None
    assert ids({"model": "org/name"}) == []
    (snapshot / "model.safetensors").unlink()
    assert ids({"model": "org/name"}) == ["weights.missing"]


def test_a_name_that_is_not_cached_is_an_error_when_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    files = check_files({"model": "org/name"}, {})
    assert [finding.id for finding in files.findings] == ["model.not_cached"]
    assert not files.is_buildable


def test_a_name_that_is_not_cached_is_an_error_without_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{closed.getsockname()[1]}")
    files = check_files({"model": "org/name"}, {})
    assert [finding.id for finding in files.findings] == ["model.hub_unreachable"]
    assert "127.0.0.1" in files.findings[0].text


def test_a_name_that_can_be_downloaded_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as hub:
        hub.bind(("127.0.0.1", 0))
        hub.listen()
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{hub.getsockname()[1]}")
        files = check_files({"model": "org/name"}, {})
    assert [(finding.id, finding.severity) for finding in files.findings] == [("files.download", Severity.WARNING)]
    assert files.is_buildable and len(files.unchecked) == 1


def test_the_vocabulary_of_a_multimodal_model_is_found_in_its_text_part(tmp_path: Path) -> None:
    model = make_model(tmp_path / "m", config={"vocab_size": None, "text_config": {"vocab_size": 99}})
    assert check_files({"model": str(model)}, {}).model.vocab_size == 99


@pytest.mark.parametrize("name", ["$NO_SUCH_VAR/x", "${NO_SUCH_VAR}/x/y", "/models/$NO_SUCH_VAR"])
def test_a_variable_that_is_not_set_is_told_and_nothing_is_looked_up(name: str) -> None:
    files = check_files({"model": name}, {})
    (finding,) = files.findings
    assert finding.id == "model.variable" and "environment variable NO_SUCH_VAR, which is not set" in finding.text
    assert "export NO_SUCH_VAR=" in finding.remedy and not files.is_buildable


def test_a_default_of_the_shell_is_no_variable_that_a_profile_knows() -> None:
    (finding,) = check_files({"model": "${MODEL:-org/m}"}, {}).findings
    assert finding.id == "model.variable" and "${MODEL:-org/m}, and a profile knows no defaults" in finding.text
