"""The checks together, with a probe that answers without vLLM."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

import engine_host.engine.vllm.releases
from engine_host.cli import main
from engine_host.preflight import preflight, questions
from engine_host.preflight.config import ConfigFacts, Probed
from engine_host.preflight.devices import Device, Holder
from engine_host.preflight.findings import error
from engine_host.protocol.events import Severity
from engine_host.protocol.profiles import Preflight
from tests.unit.preflight.facts import GIB
from tests.unit.preflight.models import ALPHABET, make_model
from tests.unit.preflight.whole import ENGINE_NAMES, NAMES, ROOMY, Machine, Write, check, ids


async def test_a_profile_that_works_is_ok_with_its_numbers(machine: Machine, profile: Write) -> None:
    report = await check(profile())
    assert report.ok and report.wire.unchecked == []
    assert report.wire.profile == "some" and report.wire.digest == profile().digest
    assert report.wire.kv_capacity_tokens == 3200 and report.wire.longest_tokens == 1600
    assert report.wire.available_bytes == 16 * GIB
    assert report.needed_bytes == report.wire.needed_bytes and (report.needed_bytes or 0) > GIB
    assert (report.fits_beside, report.fits_alone) == (True, True)
    assert report.vllm_version == "0.32.0" and report.facts == ROOMY


async def test_it_goes_over_the_wire_and_back(machine: Machine, profile: Write) -> None:
    machine.resolves(max_model_len=8192)
    wire = (await check(profile())).wire
    assert msgspec.json.decode(msgspec.json.encode(wire), type=Preflight) == wire
    assert not wire.ok


async def test_every_finding_has_an_id_a_fact_and_most_a_remedy(
    machine: Machine, profile: Write, tmp_path: Path
) -> None:
    make_model(tmp_path / "draft", swap=(ALPHABET[3], ALPHABET[4]), vocab_size=600)
    machine.resolves(max_model_len=8192, speculation_method="draft_model", num_speculative_tokens=12)
    machine.devices = [Device("this machine", 24 * GIB, GIB // 2, [Holder(5, "python3", 20 * GIB)])]
    with_draft = f'method = "draft_model"\nmodel = "{tmp_path / "draft"}"\nnum_speculative_tokens = 12'
    report = await check(profile(speculation=with_draft))
    assert ids(report) == [
        "tokenizer.mismatch",
        "tokenizer.vocab_size",
        "memory.short",
        "capacity.short",
        "option.draft_length",
    ]
    for finding in report.wire.findings:
        assert finding.text and finding.remedy
        assert any(char.isdigit() for char in finding.text)
    assert report.fits_alone is False


async def test_unknown_keys_end_the_check_of_the_configuration(machine: Machine, profile: Write) -> None:
    report = await check(profile("blok_size = 16"))
    assert ids(report) == ["names.unknown"] and machine.probed_with == []
    assert any("configuration" in what for what in report.wire.unchecked)


async def test_names_that_the_host_does_not_know_yet_come_from_the_probe(machine: Machine, profile: Write) -> None:
    machine.answer = msgspec.structs.replace(machine.answer, facts=None)
    report = await check(profile("swap_space = 4"), names=None)
    assert ids(report) == ["option.gone"] and len(machine.probed_with) == 1


async def test_a_model_that_is_not_whole_is_not_built(machine: Machine, profile: Write, tmp_path: Path) -> None:
    (tmp_path / "target" / "config.json").unlink()
    report = await check(profile())
    assert ids(report) == ["model.config_missing"] and machine.probed_with == []


async def test_a_refused_configuration_leaves_memory_unknown(machine: Machine, profile: Write) -> None:
    machine.answer = msgspec.structs.replace(machine.answer, facts=None, refusal="no")
    machine.findings = [error("config.refused", "vLLM refuses the configuration: no")]
    report = await check(profile())
    assert ids(report) == ["config.refused"]
    assert (report.fits_beside, report.fits_alone, report.needed_bytes) == (None, None, None)


async def test_heads_that_cannot_be_shared_are_told_once_with_the_model_that_has_them(
    machine: Machine, profile: Write, tmp_path: Path
) -> None:
    heads = {"num_attention_heads": 28, "num_key_value_heads": 4, "hidden_size": 3584}
    draft = make_model(tmp_path / "draft", config=heads)
    reason = "Total number of attention heads (28) must be divisible by tensor parallel size (8)."
    machine.answer = msgspec.structs.replace(machine.answer, facts=None, refusal=reason)
    machine.findings = [error("config.refused", f"vLLM refuses the configuration: {reason}")]
    with_draft = f'method = "draft_model"\nmodel = "{draft}"\nnum_speculative_tokens = 5'
    names = dataclasses.replace(NAMES, engine=(*ENGINE_NAMES, "tensor_parallel_size"))
    report = await check(profile("tensor_parallel_size = 8", speculation=with_draft), names=names)
    assert ids(report) == ["parallel.heads"] and not report.ok
    assert str(draft) in report.wire.findings[0].text


async def test_no_vllm_here_is_unchecked_and_no_error(
    machine: Machine, profile: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_host.engine.vllm.releases, "installed_version", lambda: None)
    report = await check(profile(), names=None)
    assert report.ok and ids(report) == []
    assert any("vLLM is not installed" in what for what in report.wire.unchecked)


async def test_what_fits_only_without_the_running_engine_is_told_to_the_switch(
    machine: Machine, profile: Write
) -> None:
    machine.devices = [Device("this machine", 24 * GIB, GIB // 2, given_back_bytes=4 * GIB)]
    report = await check(profile(), engine_pids=[17])
    assert machine.engine_pids == [17]
    assert report.ok and (report.fits_beside, report.fits_alone) == (False, True)
    assert ids(report) == ["memory.not_beside"]


async def test_unknown_devices_are_unchecked(machine: Machine, profile: Write) -> None:
    machine.devices = None
    report = await check(profile())
    assert report.ok and report.fits_alone is None
    assert report.wire.kv_capacity_tokens == 3200
    assert any("memory" in what for what in report.wire.unchecked)


async def test_a_check_that_fails_itself_is_unchecked_and_the_others_go_on(
    machine: Machine, profile: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> Any:
        raise ZeroDivisionError("in the check")

    monkeypatch.setattr(preflight, "check_port", broken)
    report = await check(profile())
    assert report.ok and report.wire.kv_capacity_tokens == 3200
    assert any("ports" in what and "in the check" in what for what in report.wire.unchecked)


@pytest.mark.parametrize(
    "engine",
    [
        {"speculative_config": "ngram"},
        {"speculative_config": {"model": 3, "draft_load_config": "x", "num_speculative_tokens": "many"}},
        {"speculative_config": {"num_speculative_tokens_per_batch_size": {"1": 2}}},
        {"tokenizer": 7, "revision": ["a"], "block_size": "x", "max_model_len": None, "data_parallel_size": "two"},
        {"model": "a/b/c"},
        {"model": ""},
        {"model": "s3://bucket/model"},
    ],
)
@pytest.mark.parametrize("server", [{"port": "http", "chat_template": 3}, {"host": 5, "port": -1}])
async def test_no_value_of_a_profile_makes_it_raise(
    machine: Machine, profile: Write, engine: dict[str, Any], server: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    plain = profile()
    odd = dataclasses.replace(plain, engine={**plain.engine, **engine}, server=server)
    report = await check(odd, names=None)
    assert msgspec.json.decode(msgspec.json.encode(report.wire), type=Preflight) == report.wire
    assert report.wire.findings or report.wire.unchecked


async def test_ngram_compares_no_tokenizers(machine: Machine, profile: Write) -> None:
    report = await check(profile(speculation='method = "ngram"\nnum_speculative_tokens = 5\nprompt_lookup_max = 4'))
    assert ids(report) == [] and report.wire.unchecked == []


async def test_a_head_that_vllm_recognises_compares_no_tokenizers(
    machine: Machine, profile: Write, tmp_path: Path
) -> None:
    make_model(tmp_path / "some-eagle3", vocab_size=32000)
    (tmp_path / "some-eagle3" / "tokenizer.json").unlink()
    machine.resolves(speculation_method="eagle3")
    report = await check(profile(speculation=f'model = "{tmp_path / "some-eagle3"}"\nnum_speculative_tokens = 5'))
    assert ids(report) == [] and report.wire.unchecked == []


@pytest.mark.parametrize("fault", ["broken", "missing"])
async def test_a_draft_tokenizer_that_cannot_be_read_is_refused_for_a_model_that_drafts_words(
    machine: Machine, profile: Write, tmp_path: Path, fault: str
) -> None:
    """A mismatch would corrupt every draft without a word, so that not knowing is not good enough."""
    file = make_model(tmp_path / "draft") / "tokenizer.json"
    file.write_text("{}") if fault == "broken" else file.unlink()
    machine.resolves(speculation_method="draft_model")
    with_draft = f'model = "{tmp_path / "draft"}"\nnum_speculative_tokens = 5'
    report = await check(profile(speculation=with_draft))
    assert not report.ok and ids(report) == [f"tokenizer.draft_{fault}"]
    (finding,) = report.wire.findings
    assert str(tmp_path / "draft") in finding.text and "tokenizer.json" in finding.text
    assert "copy" in finding.remedy
    assert report.wire.unchecked == []

    machine.resolves(speculation_method="eagle")  # a head has none of its own
    assert ids(await check(profile(speculation=with_draft))) == []

    machine.answer = msgspec.structs.replace(machine.answer, facts=None)  # a head or a model: not known
    report = await check(profile(speculation=with_draft))
    assert report.ok and any("the draft" in what for what in report.wire.unchecked)
    report = await check(profile(speculation=f'method = "draft_model"\n{with_draft}'))
    assert ids(report) == [f"tokenizer.draft_{fault}"]


async def test_tokenizers_that_are_not_read_in_time_are_unchecked(
    machine: Machine, profile: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def late(*question: Any) -> Any:
        raise TimeoutError

    monkeypatch.setattr(questions, "ask_child", late)
    make_model(tmp_path / "draft")
    machine.resolves(speculation_method="draft_model")
    report = await check(profile(speculation=f'model = "{tmp_path / "draft"}"\nnum_speculative_tokens = 5'))
    assert report.ok and report.wire.unchecked == ["tokenizers: not read in time"]


async def test_a_cancelled_check_ends_at_once(
    machine: Machine, profile: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = asyncio.Event()

    async def hanging(*_: Any, **__: Any) -> Probed:
        began.set()
        await asyncio.sleep(3600)
        raise AssertionError

    monkeypatch.setattr(questions, "probe_config", hanging)
    task = asyncio.ensure_future(check(profile()))
    async with asyncio.timeout(10):
        await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 5)


async def test_all_but_the_child_processes_takes_less_than_a_second(machine: Machine, profile: Write) -> None:
    began = time.monotonic()
    await check(profile())
    assert time.monotonic() - began < 1.0


def test_the_command_prints_one_object_and_exits_0(
    machine: Machine, profile: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    path = profile().path
    assert main(["check", str(path), "--json"]) == 0
    printed = capsys.readouterr()
    result = json.loads(printed.out)
    assert result["ok"] is True and result["profile"] == "some" and result["longest_tokens"] == 1600
    assert result["vllm_version"] == "0.32.0" and result["fits_alone"] is True


def test_the_command_names_what_is_wrong_and_exits_2(
    machine: Machine, profile: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.resolves(max_model_len=8192)
    assert main(["check", str(profile().path)]) == 2
    out = capsys.readouterr().out
    assert "some (" in out and "refused" in out and "1 error" in out
    assert "ERROR" in out and "[capacity.short]" in out and "max_model_len = 3200 or less" in out
    assert Severity.ERROR.upper() in out


def test_a_file_that_is_no_profile_is_one_object_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.toml").write_text("schema = 2\n")
    assert main(["check", str(tmp_path / "x.toml"), "--json"]) == 2
    result = json.loads(capsys.readouterr().out)
    assert result["ok"] is False and "schema" in result["error"] and result["remedy"]


def test_facts_are_what_the_probe_writes() -> None:
    """The struct and the probe's table name the same keys; a key that only one has would be lost in silence."""
    import ast

    source = Path(preflight.__file__).parents[1] / "engine" / "vllm" / "resolved.py"
    (table,) = [
        node.value
        for node in ast.walk(ast.parse(source.read_text()))
        if isinstance(node, ast.Return) and isinstance(node.value, ast.Dict) and len(node.value.keys) > 10
    ]
    assert isinstance(table, ast.Dict)
    written = {key.value for key in table.keys if isinstance(key, ast.Constant)}
    assert written == set(ConfigFacts.__struct_fields__)
