"""Weights that are whole, and every way in which they are not."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_host.preflight.weights import check_weights
from engine_host.protocol.events import Severity
from tests.unit.preflight.models import make_model


def only(findings: list) -> tuple[str, str]:
    assert len(findings) == 1, findings
    return findings[0].id, findings[0].text


def test_whole_weights_are_measured_from_their_headers(tmp_path: Path) -> None:
    model = make_model(tmp_path / "m", tensors={"a": ("BF16", 1000), "b": ("F8_E4M3", 200)})
    weights, findings = check_weights(model, "the model")
    assert findings == []
    assert weights is not None and weights.bytes_by_dtype == {"BF16": 1000, "F8_E4M3": 200}
    assert weights.total_bytes == 1200


def test_a_shard_that_the_index_names_and_nobody_downloaded_is_named(tmp_path: Path) -> None:
    model = make_model(tmp_path / "m", shards=2)
    (model / "model-00002-of-00002.safetensors").unlink()
    weights, findings = check_weights(model, "the model")
    assert weights is None
    id, text = only(findings)
    assert id == "weights.shard_missing"
    assert "1 of 2" in text and "model-00002-of-00002.safetensors" in text


def test_a_shard_that_was_cut_off_is_told_with_both_lengths(tmp_path: Path) -> None:
    model = make_model(tmp_path / "m", tensors={"a": ("BF16", 5000)})
    file = model / "model.safetensors"
    whole = file.stat().st_size
    file.write_bytes(file.read_bytes()[: whole - 1])
    id, text = only(check_weights(model, "the model")[1])
    assert id == "weights.truncated"
    assert f"{whole - 1:,}" in text and f"{whole:,}" in text


@given(left=st.floats(0, 1, exclude_max=True))
def test_a_file_cut_off_anywhere_is_named(left: float) -> None:
    with tempfile.TemporaryDirectory() as directory:
        model = make_model(Path(directory) / "model")
        file = model / "model.safetensors"
        whole = file.read_bytes()
        file.write_bytes(whole[: int(left * len(whole))])
        weights, (finding,) = check_weights(model, "the model")
        assert weights is None and finding.severity is Severity.ERROR and str(file) in finding.text


def test_a_header_that_was_cut_off_is_a_cut_off_file_too(tmp_path: Path) -> None:
    model = make_model(tmp_path / "m")
    file = model / "model.safetensors"
    file.write_bytes(file.read_bytes()[:20])
    assert only(check_weights(model, "the model")[1])[0] == "weights.truncated"


def test_a_git_lfs_pointer_is_recognised(tmp_path: Path) -> None:
    model = make_model(tmp_path / "m")
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 123\n"
    (model / "model.safetensors").write_text(pointer)
    id, text = only(check_weights(model, "the draft model")[1])
    assert id == "weights.lfs_pointer" and "the draft model" in text


def test_bytes_after_the_last_tensor_refuse_the_file(tmp_path: Path) -> None:
    model = make_model(tmp_path / "m")
    with (model / "model.safetensors").open("ab") as file:
        file.write(b"\0" * 7)
    id, text = only(check_weights(model, "the model")[1])
    assert id == "weights.too_long" and "7 bytes" in text


def test_a_file_of_something_else_is_no_safetensors_file(tmp_path: Path) -> None:
    model = make_model(tmp_path / "m")
    (model / "model.safetensors").write_bytes(b"<html><body>502 Bad Gateway</body></html>" * 10)
    assert only(check_weights(model, "the model")[1])[0] == "weights.header_broken"


def test_a_header_nested_too_deeply_is_broken(tmp_path: Path) -> None:
    model = make_model(tmp_path / "m")
    header = b"[" * 3_000 + b"]" * 3_000
    (model / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    assert only(check_weights(model, "the model")[1])[0] == "weights.header_broken"


def test_a_tensor_that_no_shard_holds_is_named(tmp_path: Path) -> None:
    model = make_model(tmp_path / "m", shards=2)
    index = model / "model.safetensors.index.json"
    index.write_text(index.read_text().replace("lm_head", "lm_tail"))
    id, text = only(check_weights(model, "the model")[1])
    assert id == "weights.tensor_missing" and "lm_tail" in text


@pytest.mark.parametrize("content", ["{", "[" * 3_000])
def test_an_index_that_is_no_json_is_told(tmp_path: Path, content: str) -> None:
    model = make_model(tmp_path / "m", shards=2)
    (model / "model.safetensors.index.json").write_text(content)
    assert only(check_weights(model, "the model")[1])[0] == "weights.index_broken"


def test_no_weights_at_all_is_an_error_and_older_formats_are_weighed(tmp_path: Path) -> None:
    model = make_model(tmp_path / "m")
    (model / "model.safetensors").unlink()
    assert only(check_weights(model, "the model")[1])[0] == "weights.missing"
    (model / "pytorch_model.bin").write_bytes(bytes(77))
    weights, findings = check_weights(model, "the model")
    assert findings == [] and weights is not None and weights.total_bytes == 77


def test_the_second_copy_that_mistral_ships_is_not_counted(tmp_path: Path) -> None:
    model = make_model(tmp_path / "m", tensors={"a": ("BF16", 100)})
    (model / "consolidated.safetensors").write_bytes((model / "model.safetensors").read_bytes())
    weights, _ = check_weights(model, "the model")
    assert weights is not None and weights.total_bytes == 100
