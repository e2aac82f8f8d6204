"""The process that builds the configuration: however it ends, there is an answer and no child."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from console.consequence import FORECAST_DEADLINE_S
from engine_host.preflight.config import ConfigFacts, Probed, probe_config
from engine_host.preflight.preflight import DEADLINE_S
from engine_host.protocol.events import Severity
from tests.unit.preflight.facts import DEMO

ENGINE = {"model": "m", "max_num_batched_tokens": 512}


async def probe(script: str, deadline_s: float = 20.0) -> Probed:
    return await probe_config(
        ENGINE,
        {},
        deadline_s=deadline_s,
        command=(sys.executable, "-c", f"import json, os, sys, time\n{script}"),
    )


def answering(answer: str) -> str:
    return f"request = json.load(sys.stdin)\nsys.stdout.write({answer!r})"


async def until(condition: Any) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.01)


async def test_the_facts_come_back_typed() -> None:
    answer = msgspec.json.encode({"vllm_version": "0.32.0", "facts": msgspec.to_builtins(DEMO)}).decode()
    probed = await probe(answering(answer))
    assert probed.findings == []
    assert probed.answer.facts == DEMO and isinstance(probed.answer.facts, ConfigFacts)


async def test_a_refusal_is_in_the_words_of_vllm_with_a_remedy() -> None:
    reason = "max_num_batched_tokens (512) is smaller than max_model_len (2048). This effectively limits"
    probed = await probe(answering(msgspec.json.encode({"refusal": reason}).decode()))
    (finding,) = probed.findings
    assert (finding.id, finding.severity) == ("config.refused", Severity.ERROR)
    assert reason in finding.text and "enable_chunked_prefill = true" in finding.remedy


async def test_a_long_refusal_is_cut_after_a_sentence() -> None:
    reason = "The first sentence. " + "x" * 280 + ". The rest " + "y" * 400
    (finding,) = (await probe(answering(msgspec.json.encode({"refusal": reason}).decode()))).findings
    assert finding.text.endswith("x.") and "The rest" not in finding.text


async def test_a_crash_is_told_by_the_root_of_its_traceback() -> None:
    (finding,) = (await probe("raise RuntimeError('libcuda.so.1: cannot open shared object file')")).findings
    assert finding.id == "config.crashed"
    assert "libcuda.so.1" in finding.text and "exit code 1" in finding.text


async def test_a_process_that_is_killed_is_told_by_its_signal() -> None:
    (finding,) = (await probe("os.kill(os.getpid(), 9)")).findings
    assert "by signal 9" in finding.text


async def test_an_answer_that_is_no_json_is_a_crash_and_no_exception() -> None:
    (finding,) = (await probe("print('no json')")).findings
    assert finding.id == "config.crashed"


async def test_no_interpreter_is_a_finding_and_no_exception() -> None:
    probed = await probe_config(ENGINE, {}, deadline_s=5, command=("/nonexistent/python",))
    assert [finding.id for finding in probed.findings] == ["config.crashed"]


async def test_warnings_of_vllm_about_keys_of_the_profile_are_repeated_and_others_are_not() -> None:
    said = [
        "max_num_batched_tokens (512)\n is low.",
        "Triton is not installed.",
        "max_num_batched_tokens (512) is low.",
    ]
    probed = await probe(answering(msgspec.json.encode({"warnings": said}).decode()))
    assert [(finding.severity, finding.text) for finding in probed.findings] == [
        (Severity.INFO, "vLLM says: max_num_batched_tokens (512) is low.")
    ]


async def test_the_profile_reaches_the_process_and_output_on_the_way_is_no_answer(tmp_path: Path) -> None:
    seen = tmp_path / "seen.json"
    await probe(f"open({str(seen)!r}, 'w').write(sys.stdin.read())\nprint('{{}}')")
    request = msgspec.json.decode(seen.read_bytes())
    assert request["engine"] == ENGINE


async def test_the_process_yields_to_the_engine_and_is_not_starved_by_it() -> None:
    """At 10 it gets a tenth of a core that an engine keeps busy, and minutes pass before vLLM is imported."""
    probed = await probe("json.load(sys.stdin)\nprint(json.dumps({'vllm_version': str(os.nice(0))}))")
    assert 1 <= int(probed.answer.vllm_version or 0) - os.nice(0) <= 4


def test_a_console_waits_longer_for_a_check_than_a_host() -> None:
    assert FORECAST_DEADLINE_S > DEADLINE_S


CHILDREN = """import subprocess
sys.stdin.read()  # so that it is waited for by then
subprocess.Popen(['sleep', '300'])
open({file!r}, 'w').write(str(os.getpid()))
time.sleep(300)"""


def group_of(pid: int) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if os.getpgid(process.pid) == pid and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (ProcessLookupError, psutil.Error):
            continue
    return found


async def test_a_process_that_hangs_is_ended_at_the_deadline_with_its_children(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    began = time.monotonic()
    probed = await probe(CHILDREN.format(file=str(file)), deadline_s=3)
    assert time.monotonic() - began < 20
    assert [finding.id for finding in probed.findings] == ["config.timeout"]
    await until(lambda: group_of(int(file.read_text())) == [])


async def test_a_cancelled_probe_leaves_no_child(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    task = asyncio.create_task(probe(CHILDREN.format(file=str(file)), deadline_s=60))
    await until(lambda: file.exists() and file.read_text())
    pid = int(file.read_text())
    assert len(group_of(pid)) == 2
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: group_of(pid) == [])


async def test_the_event_loop_runs_on_while_the_process_works() -> None:
    task = asyncio.create_task(probe("time.sleep(1.5)\nprint('{}')"))
    slowest, last = 0.0, time.monotonic()
    while not task.done():
        await asyncio.sleep(0.01)
        slowest, last = max(slowest, time.monotonic() - last), time.monotonic()
    await task
    assert slowest < 1.0
