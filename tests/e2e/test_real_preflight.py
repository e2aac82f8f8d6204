"""The preflight with the installed vLLM and the demo model: no engine is started, a configuration is really built."""

from __future__ import annotations

import asyncio
import json
import os
import time
from pathlib import Path

import psutil
import pytest

from engine_host.preflight.preflight import PreflightReport, run_preflight
from engine_host.profiles import Profile, load_profile
from engine_host.protocol.events import Severity

pytestmark = [pytest.mark.engine, pytest.mark.timeout(180)]

MODEL = Path("~/.cache/vllm-console/models/SmolLM2-135M-Instruct").expanduser()
FREE_PORT = 18473


def written(tmp_path: Path, engine: str, speculation: str = "") -> Profile:
    table = f"[engine.speculative_config]\n{speculation}\n" if speculation else ""
    path = tmp_path / "some.toml"
    path.write_text(
        f'schema = 1\n[engine]\nmodel = "{MODEL}"\nblock_size = 32\n{engine}\n{table}[server]\nport = {FREE_PORT}\n'
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
    assert took_s < 60
    assert {child.pid for child in psutil.Process().children(recursive=True)} <= before


async def test_what_a_profile_leaves_out_is_what_vllm_serve_would_take(tmp_path: Path) -> None:
    """On CPU a server gets 2048 tokens and 128 sequences for each of its ranks; others get them once."""
    report = await run_preflight(written(tmp_path, "tensor_parallel_size = 3\nkv_cache_memory_bytes = 90_000_000"))
    assert report.facts is not None, report.wire.findings
    assert (report.facts.max_num_batched_tokens, report.facts.max_num_seqs) == (6144, 384)


async def test_what_vllm_refuses_is_told_in_its_own_words(tmp_path: Path) -> None:
    profile = written(
        tmp_path, "max_model_len = 2048\nmax_num_batched_tokens = 512\nmax_num_seqs = 8\nenable_chunked_prefill = false"
    )
    report = await run_preflight(profile)
    (finding,) = [finding for finding in report.wire.findings if finding.id == "config.refused"]
    assert "max_num_batched_tokens (512) is smaller than max_model_len (2048)" in finding.text
    assert "input_value" not in finding.text and "Traceback" not in finding.text
    assert "enable_chunked_prefill" in finding.remedy


async def test_a_key_of_an_older_release_is_refused_with_what_took_its_place(tmp_path: Path) -> None:
    report = await run_preflight(written(tmp_path, "swap_space = 4", 'method = "ngram"\ndisable_by_batch_size = 32'))
    assert set(ids(report)) >= {"option.gone"} and not report.ok
    assert any("kv_offloading_size = 4" in finding.remedy for finding in report.wire.findings)
    assert any("num_speculative_tokens_per_batch_size" in finding.remedy for finding in report.wire.findings)


async def test_a_length_beyond_the_kv_cache_is_refused_before_anything_starts(tmp_path: Path) -> None:
    report = await run_preflight(written(tmp_path, "max_model_len = 4096\nkv_cache_memory_bytes = 50_000_000"))
    assert ids(report) == ["capacity.short"]
    assert report.wire.longest_tokens == 2112


async def test_a_draft_with_two_ids_exchanged_is_refused_though_vllm_would_start_it(tmp_path: Path) -> None:
    draft = tmp_path / "draft"
    draft.mkdir()
    for file in MODEL.iterdir():
        if file.name != "tokenizer.json":
            (draft / file.name).symlink_to(file)
    tokenizer = json.loads((MODEL / "tokenizer.json").read_bytes())
    vocab = tokenizer["model"]["vocab"]
    vocab["Ġthe"], vocab["Ġof"] = vocab["Ġof"], vocab["Ġthe"]
    (draft / "tokenizer.json").write_text(json.dumps(tokenizer))
    profile = written(
        tmp_path,
        "max_model_len = 1024\nkv_cache_memory_bytes = 90_000_000",
        f'method = "draft_model"\nmodel = "{draft}"\nnum_speculative_tokens = 5',
    )
    report = await run_preflight(profile)
    (finding,) = [finding for finding in report.wire.findings if finding.severity is not Severity.INFO]
    assert finding.id == "tokenizer.mismatch" and finding.severity is Severity.ERROR
    assert "2 tokens" in finding.text and "'Ġ" in finding.text
    assert report.facts is not None, "vLLM itself accepts the pair"
    assert report.facts.draft_kv_bytes_per_token == 23040


async def test_a_cancelled_check_leaves_no_process(tmp_path: Path) -> None:
    task = asyncio.create_task(run_preflight(written(tmp_path, "max_model_len = 512")))
    started: list[psutil.Process] = []
    async with asyncio.timeout(30):
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
