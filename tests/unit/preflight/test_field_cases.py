"""What operators ran into, each through a whole preflight: told before anything is touched, with numbers and a remedy.

By the numbers of the field's cases: 10 to 16, and 21. That a switch then touches nothing: `tests.unit.test_switch`.
"""

from __future__ import annotations

import dataclasses
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from engine_host.preflight.devices import Device, Holder
from engine_host.preflight.findings import error
from engine_host.preflight.preflight import PreflightReport
from engine_host.profiles.imported import Imported
from engine_host.profiles.importer import import_text
from engine_host.profiles.profile import build_profile
from engine_host.protocol.events import Severity
from engine_host.protocol.profiles import Finding
from tests.unit.preflight.facts import GIB
from tests.unit.preflight.models import ALPHABET, make_model
from tests.unit.preflight.whole import ENGINE_NAMES, NAMES, SPECULATION, Machine, Write, check

SCHEDULE = "num_speculative_tokens_per_batch_size"


def told(report: PreflightReport, id: str) -> Finding:
    """The one finding of that kind; every one has something to do about it."""
    (found,) = [finding for finding in report.wire.findings if finding.id == id]
    assert found.remedy
    return found


async def test_10_a_length_beyond_the_kv_cache_is_refused_with_the_longest_that_fits(
    machine: Machine, profile: Write
) -> None:
    machine.resolves(max_model_len=8192, kv_cache_memory_bytes=50_000_000)
    report = await check(profile())
    found = told(report, "capacity.short")
    assert found.severity is Severity.ERROR and report.wire.longest_tokens == 2112
    assert "8,192 tokens needs" in found.text and "are there" in found.text and "2,112 tokens" in found.text
    assert "max_model_len = 2112 or less" in found.remedy


async def test_11_another_process_on_the_device_is_named_with_what_it_holds(machine: Machine, profile: Write) -> None:
    holder = Holder(4242, "python3", 20 * GIB)
    machine.devices = [Device("GPU 0 (A100)", 24 * GIB, GIB, [holder], given_back_bytes=0)]
    found = told(await check(profile(), engine_pids=[17]), "memory.short")
    assert found.severity is Severity.ERROR
    assert "are needed" in found.text and "1 GiB of 24 GiB are free" in found.text
    assert "python3 (pid 4242) 20 GiB" in found.text


async def test_12_a_false_in_quotes_is_refused_since_it_would_count_as_true(machine: Machine, profile: Write) -> None:
    names = dataclasses.replace(NAMES, engine=(*ENGINE_NAMES, "enable_prefix_caching", "max_num_seqs"))
    report = await check(profile('enable_prefix_caching = "False"\nmax_num_seqs = "many"'), names=names)
    flag, number = told(report, "option.text_flag"), told(report, "option.kind")
    assert flag.severity is Severity.ERROR and "engine.enable_prefix_caching = 'False' is a text" in flag.text
    assert "enable_prefix_caching = false" in flag.remedy
    assert number.severity is Severity.WARNING and "engine.max_num_seqs = 'many'" in number.text
    assert not report.ok


async def test_a_word_for_a_number_that_vllm_refuses_is_told_by_its_key(machine: Machine, profile: Write) -> None:
    names = dataclasses.replace(NAMES, engine=(*ENGINE_NAMES, "max_num_seqs"))
    machine.answer = msgspec.structs.replace(machine.answer, facts=None, refusal="x")
    pythons = error("config.refused", "vLLM refuses: '<' not supported between instances of 'int' and 'str'")
    others = error("config.refused", "vLLM refuses the configuration: no such quantization")
    for refused, kept in ((pythons, []), (others, ["config.refused"])):
        machine.findings = [refused]
        report = await check(profile('max_num_seqs = "many"'), names=names)
        assert [found.id for found in report.wire.findings] == ["option.kind", *kept] and not report.ok
        number = told(report, "option.kind")
        assert number.severity is Severity.ERROR
        assert "engine.max_num_seqs = 'many': vLLM takes a whole number" in number.text
    machine.findings = [pythons]
    assert [found.id for found in (await check(profile(), names=names)).wire.findings] == ["config.refused"]


@pytest.mark.parametrize(
    "text",
    [
        "model: org/m\nenable-prefix-caching: false\nspeculative-config: {method: ngram, num_speculative_tokens: 5}\n",
        "model: org/m\nenable_prefix_caching: false\n"
        """speculative_config: '{"num_speculative_tokens": 5, "method": "ngram"}'\n""",
        "model: org/m\nno-enable-prefix-caching: true\nspeculative-config.method: ngram\n"
        "speculative-config.num_speculative_tokens: 5\n",
        "vllm serve org/m --no-enable-prefix-caching --speculative-config.method ngram "
        "--speculative-config.num_speculative_tokens 5",
    ],
    ids=["dashes and a mapping", "underscores and JSON", "a no- flag and dotted keys", "a command line"],
)
def test_12_every_form_of_a_setting_has_the_same_effective_value_and_digest(text: str) -> None:
    found: Imported = import_text(text)
    profile = build_profile(found.content(), Path("p.toml"))
    assert profile.engine["enable_prefix_caching"] is False
    same = {"engine": {"model": "org/m", "enable_prefix_caching": False,
                       "speculative_config": {"method": "ngram", "num_speculative_tokens": 5}}}  # fmt: skip
    assert profile.digest == build_profile({"schema": 1, **same}, Path("p.toml")).digest


async def test_13_a_key_that_is_none_is_refused_with_the_nearest_name(machine: Machine, profile: Write) -> None:
    report = await check(profile(speculation="num_speculative_tokens = 5\nngram_prompt_lookup_max = 4"))
    found = told(report, "option.gone")
    assert found.severity is Severity.ERROR and "speculative_config.ngram_prompt_lookup_max" in found.text
    assert 'did you mean "prompt_lookup_max"?' in found.remedy
    assert machine.probed_with == [], "and vLLM is not even asked"


@pytest.mark.parametrize("is_taken", [True, False])
async def test_14_the_dead_switch_by_batch_size_is_told_and_the_schedule_offered(
    machine: Machine, profile: Write, is_taken: bool
) -> None:
    """Releases that take the key do nothing with it; the others refuse it."""
    keys = (*SPECULATION, SCHEDULE, *(["disable_by_batch_size"] if is_taken else []))
    names = dataclasses.replace(NAMES, nested={"speculative_config": keys})
    report = await check(profile(speculation="num_speculative_tokens = 5\ndisable_by_batch_size = 32"), names=names)
    found = told(report, "option.dead" if is_taken else "option.gone")
    assert found.severity is (Severity.WARNING if is_taken else Severity.ERROR)
    assert f"{SCHEDULE} = [[1, 31, 5], [32, 256, 0]]" in found.remedy


async def test_15_a_schedule_of_draft_lengths_is_warned_about_with_what_it_has_cost(
    machine: Machine, profile: Write
) -> None:
    names = dataclasses.replace(NAMES, nested={"speculative_config": (*SPECULATION, SCHEDULE)})
    table = f"num_speculative_tokens = 5\n{SCHEDULE} = [[1, 16, 5], [17, 64, 2]]"
    report = await check(profile(speculation=table), names=names)
    found = told(report, "option.schedule_slow")
    assert found.severity is Severity.WARNING and "232 -> 24 to 157 tok/s" in found.text
    assert report.ok


@pytest.mark.parametrize("built", [True, False])
async def test_16_vocabularies_of_another_size_are_refused(
    machine: Machine, profile: Write, tmp_path: Path, built: bool
) -> None:
    """151936 rows against 152064: the same family and the same tokenizer, padded differently."""
    (tmp_path / "target" / "config.json").unlink(missing_ok=True)
    some = profile(speculation=f'method = "draft_model"\nmodel = "{tmp_path / "draft"}"\nnum_speculative_tokens = 5')
    make_model(tmp_path / "other", vocab_size=152064)
    (tmp_path / "other" / "config.json").replace(tmp_path / "target" / "config.json")
    make_model(tmp_path / "draft", vocab_size=151936)
    machine.resolves(speculation_method="draft_model")
    if not built:
        machine.answer = type(machine.answer)(refusal="no")
    found = told(await check(some), "tokenizer.vocab_size")
    assert found.severity is Severity.ERROR and "152064" in found.text and "151936" in found.text


async def test_16_the_first_token_that_differs_is_named(machine: Machine, profile: Write, tmp_path: Path) -> None:
    """vLLM starts such a pair, and drafts other words than were meant for ever after."""
    draft = make_model(tmp_path / "draft", swap=(ALPHABET[66], ALPHABET[70]))
    machine.resolves(speculation_method="draft_model")
    report = await check(profile(speculation=f'method = "draft_model"\nmodel = "{draft}"\nnum_speculative_tokens = 5'))
    found = told(report, "tokenizer.mismatch")
    assert found.severity is Severity.ERROR and not report.ok
    assert f"first {ALPHABET[66]!r} is id 66 in the target" in found.text and "id 70" in found.text


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


async def test_21_a_port_in_use_is_named_with_the_process_that_holds_it(
    machine: Machine, profile: Write, taken: int
) -> None:
    report = await check(profile(port=taken), running_port=None)
    found = told(report, "port.in_use")
    assert found.severity is Severity.ERROR and not report.ok
    assert str(taken) in found.text and f"process {os.getpid()}" in found.text


async def test_21_a_switch_keeps_the_hosts_own_port(machine: Machine, profile: Write, taken: int) -> None:
    assert (await check(profile(port=taken), running_port=taken)).ok
