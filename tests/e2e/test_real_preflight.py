"""The preflight with the installed vLLM and the demo model: no engine is started, a configuration is really built.

A check is mostly the imports of one process, so all profiles are checked before the first test that asks for a report,
two at a time.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from engine_host.pad_heads import heads_for, padded_config
from engine_host.preflight.preflight import PreflightReport, run_preflight
from engine_host.profiles import Profile, load_profile
from engine_host.protocol.events import Severity
from tests.ports import free_port
from tests.unit.preflight.models import make_model

pytestmark = [pytest.mark.engine, pytest.mark.timeout(400)]

MODEL = Path("~/.cache/vllm-console/models/SmolLM2-135M-Instruct").expanduser()

Build = Callable[[Path], Profile]
BUILDS: list[Build] = []


def checked(build: Build) -> Build:
    """Marks what builds a profile, in a directory of its own, whose report a test looks at."""
    BUILDS.append(build)
    return build


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[Build, PreflightReport]:
    async def check_all() -> list[PreflightReport]:
        two = asyncio.Semaphore(2)

        async def check(build: Build) -> PreflightReport:
            async with two:
                return await run_preflight(build(tmp_path_factory.mktemp("checked")), running_port=8000)

        return await asyncio.gather(*map(check, BUILDS))

    return dict(zip(BUILDS, asyncio.run(check_all()), strict=True))


def written(tmp_path: Path, engine: str, speculation: str = "") -> Profile:
    table = f"[engine.speculative_config]\n{speculation}\n" if speculation else ""
    path = tmp_path / "some.toml"
    path.write_text(
        f'schema = 1\n[engine]\nmodel = "{MODEL}"\nblock_size = 32\n{engine}\n{table}[server]\nport = {free_port()}\n'
    )
    return load_profile(path)


def ids(report: PreflightReport) -> list[str]:
    return [finding.id for finding in report.wire.findings]


async def test_the_demo_profile_passes_with_the_figures_that_the_engine_would_report() -> None:
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    began = time.monotonic()
    report = await run_preflight(load_profile(Path("profiles/demo.toml")), running_port=8000)
    took_s = time.monotonic() - began
    assert report.ok, report.wire.findings
    assert report.wire.unchecked == []
    # 75 MB are 101 blocks of 32 tokens, of which vLLM keeps one.
    assert report.wire.kv_capacity_tokens == 3200 and report.wire.longest_tokens == 2048
    assert report.fits_alone is True and report.fits_beside is True
    assert report.facts is not None and report.facts.kv_bytes_per_token == 23040
    assert report.facts.speculation_method == "ngram"
    assert took_s < 120
    assert {child.pid for child in psutil.Process().children(recursive=True)} <= before


@checked
def three_ranks(tmp_path: Path) -> Profile:
    return written(tmp_path, "tensor_parallel_size = 3\nkv_cache_memory_bytes = 90_000_000")


def test_what_a_profile_leaves_out_is_what_vllm_serve_would_take(reports: dict[Build, PreflightReport]) -> None:
    """On CPU a server gets 2048 tokens and 128 sequences for each of its ranks; others get them once."""
    report = reports[three_ranks]
    assert report.facts is not None, report.wire.findings
    assert (report.facts.max_num_batched_tokens, report.facts.max_num_seqs) == (6144, 384)


@checked
def small_batch(tmp_path: Path) -> Profile:
    return written(
        tmp_path, "max_model_len = 2048\nmax_num_batched_tokens = 512\nmax_num_seqs = 8\nenable_chunked_prefill = false"
    )


def test_what_vllm_refuses_is_told_in_its_own_words(reports: dict[Build, PreflightReport]) -> None:
    report = reports[small_batch]
    (finding,) = [finding for finding in report.wire.findings if finding.id == "config.refused"]
    assert "max_num_batched_tokens (512) is smaller than max_model_len (2048)" in finding.text
    assert "input_value" not in finding.text and "Traceback" not in finding.text
    assert "enable_chunked_prefill" in finding.remedy


@checked
def of_an_older_release(tmp_path: Path) -> Profile:
    return written(tmp_path, "swap_space = 4", 'method = "ngram"\ndisable_by_batch_size = 32')


def test_a_key_of_an_older_release_is_refused_with_what_took_its_place(reports: dict[Build, PreflightReport]) -> None:
    report = reports[of_an_older_release]
    assert set(ids(report)) >= {"option.gone"} and not report.ok
    assert any("kv_offloading_size = 4" in finding.remedy for finding in report.wire.findings)
    assert any("num_speculative_tokens_per_batch_size" in finding.remedy for finding in report.wire.findings)


@checked
def too_long(tmp_path: Path) -> Profile:
    return written(tmp_path, "max_model_len = 4096\nkv_cache_memory_bytes = 50_000_000")


def test_a_length_beyond_the_kv_cache_is_refused_before_anything_starts(reports: dict[Build, PreflightReport]) -> None:
    report = reports[too_long]
    assert ids(report) == ["capacity.short"]
    assert report.wire.longest_tokens == 2112


@checked
def ids_exchanged(tmp_path: Path) -> Profile:
    draft = tmp_path / "draft"
    draft.mkdir()
    for file in MODEL.iterdir():
        if file.name != "tokenizer.json":
            (draft / file.name).symlink_to(file)
    tokenizer = json.loads((MODEL / "tokenizer.json").read_bytes())
    vocab = tokenizer["model"]["vocab"]
    vocab["Ġthe"], vocab["Ġof"] = vocab["Ġof"], vocab["Ġthe"]
    (draft / "tokenizer.json").write_text(json.dumps(tokenizer))
    return written(
        tmp_path,
        "max_model_len = 1024\nkv_cache_memory_bytes = 90_000_000",
        f'method = "draft_model"\nmodel = "{draft}"\nnum_speculative_tokens = 5',
    )


def test_a_draft_with_two_ids_exchanged_is_refused_though_vllm_would_start_it(
    reports: dict[Build, PreflightReport],
) -> None:
    report = reports[ids_exchanged]
    (finding,) = [finding for finding in report.wire.findings if finding.severity is not Severity.INFO]
    assert finding.id == "tokenizer.mismatch" and finding.severity is Severity.ERROR
    assert "2 tokens" in finding.text and "'Ġ" in finding.text
    assert report.facts is not None, "vLLM itself accepts the pair"
    assert report.facts.draft_kv_bytes_per_token == 23040


QWEN: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "torch_dtype": "bfloat16",
    "max_position_embeddings": 32768,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
}
QWEN_72B = {
    **QWEN,
    "hidden_size": 8192,
    "intermediate_size": 29568,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
}
QWEN_7B = {
    **QWEN,
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
}


def shipped_72b(tmp_path: Path, draft: dict[str, Any], **speculation: Any) -> Profile:
    """The shipped profile over directories with the two models' configurations and no weights."""
    shipped = load_profile(Path("profiles/qwen2.5-72b-8xa100.toml"))
    engine = shipped.to_arguments().engine
    engine["model"] = str(make_model(tmp_path / "Qwen2.5-72B", vocab_size=152064, config=QWEN_72B))
    engine["load_format"] = "dummy"
    engine["speculative_config"] |= speculation
    engine["speculative_config"]["model"] = str(make_model(tmp_path / "draft", vocab_size=152064, config=draft))
    return dataclasses.replace(shipped, engine=engine)


def errors(report: PreflightReport) -> dict[str, str]:
    """What this machine's memory has to say to 72 billion parameters is left out."""
    found = [finding for finding in report.wire.findings if finding.severity is Severity.ERROR]
    return {finding.id: finding.text for finding in found if not finding.id.startswith("memory.")}


@checked
def padded_draft(tmp_path: Path) -> Profile:
    return shipped_72b(tmp_path, padded_config(QWEN_7B, heads_for(QWEN_7B, 8)))


def test_the_shipped_profile_for_eight_cards_is_built_with_a_draft_that_eight_can_share(
    reports: dict[Build, PreflightReport],
) -> None:
    report = reports[padded_draft]
    assert errors(report) == {} and report.facts is not None
    facts = report.facts
    assert (facts.devices, facts.tensor_parallel_size, facts.draft_tensor_parallel_size) == (8, 8, 8)
    assert (facts.max_model_len, facts.block_size, facts.num_speculative_tokens) == (8192, 16, 5)
    assert (facts.max_num_batched_tokens, facts.max_num_seqs, facts.enable_prefix_caching) == (32768, 256, True)
    # One key-value head of 128 a card: 80 layers of the target, 28 of the draft, key and value, two bytes each.
    assert (facts.kv_bytes_per_token, facts.draft_kv_bytes_per_token) == (80 * 512, 28 * 512)


@checked
def draft_on_one_card(tmp_path: Path) -> Profile:
    return shipped_72b(tmp_path, QWEN_7B, draft_tensor_parallel_size=1)


def test_the_seven_billion_as_they_come_are_refused_though_vllm_builds_the_configuration(
    reports: dict[Build, PreflightReport],
) -> None:
    report = reports[draft_on_one_card]
    assert report.facts is not None, "vLLM itself would find out when the weights load"
    (text,) = errors(report).values()
    assert "draft_tensor_parallel_size = 1 and tensor_parallel_size = 8" in text and "28 attention heads" in text


@checked
def odd_heads(tmp_path: Path) -> Profile:
    return shipped_72b(tmp_path, QWEN_7B)


def test_heads_that_do_not_divide_are_told_with_the_model_that_has_them(reports: dict[Build, PreflightReport]) -> None:
    report = reports[odd_heads]
    assert list(errors(report)) == ["parallel.heads"], "and not in vLLM's words, which name no model"
    assert "the draft" in errors(report)["parallel.heads"] and report.facts is None


async def test_a_cancelled_check_leaves_no_process(tmp_path: Path) -> None:
    task = asyncio.create_task(run_preflight(written(tmp_path, "max_model_len = 512")))
    started: list[psutil.Process] = []
    async with asyncio.timeout(60):
        while not started:
            await asyncio.sleep(0.05)
            started = [child for child in psutil.Process().children() if _is_probe(child)]
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in started)
    assert os.getpid() not in {child.pid for child in started}


def _is_probe(process: psutil.Process) -> bool:
    try:
        return any("config_probe" in part for part in process.cmdline())
    except psutil.Error:
        return False
