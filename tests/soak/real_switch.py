"""The hot switch on real vLLM under load: no request fails, carried answers are the same, failures roll back.

One host lives through all tests of this module, in the order of the file. Not part of `make test`, since it takes about
a quarter of an hour on two cores:

    python -m pytest -p tests.e2e.conftest tests/soak/real_switch.py
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.e2e.client import Seen, ask, ask_all, mixed
from tests.e2e.conftest import HERE
from tests.e2e.real_host import RealHost, until

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

GREEDY = {"completion", "chat", "multi-byte", "stop string", "two choices", "logprobs"}
"""Kinds whose answer is the same whenever they are asked, switched or not."""


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory, model: None) -> Iterator[RealHost]:
    home = tmp_path_factory.mktemp("switch")
    os.environ["VLLM_CONSOLE_TEST_BROKEN_MODEL"] = str(broken_model(home / "broken-model"))
    arguments = (f"--profiles-dir={HERE / 'profiles'}",)
    real = RealHost(home, HERE / "profiles" / "a.toml", arguments=arguments).start()
    try:
        real.wait_for_state("serving")
        yield real
    finally:
        real.end()


def broken_model(path: Path) -> Path:
    """The test model with one tensor of a wrong shape: every header is well-formed, and loading it fails."""
    shutil.copytree(os.environ["VLLM_CONSOLE_TEST_MODEL"], path)
    config = json.loads((path / "config.json").read_text())
    config["intermediate_size"] = config["intermediate_size"] // 2
    (path / "config.json").write_text(json.dumps(config))
    return path


def switch(host: RealHost, name: str, *more: str) -> tuple[int, dict[str, Any], str]:
    """`vllm-console switch NAME --json`: exit code, result, standard error."""
    answer = host.console("switch", name, "--yes", "--json", *more, timeout_s=400)
    return answer.returncode, json.loads(answer.stdout) if answer.stdout.strip() else {}, answer.stderr


async def under_load(host: RealHost, requests: Any, *names_and_more: tuple[str, ...]) -> tuple[list[Seen], list[Any]]:
    """Switch while `requests` are in flight."""
    async with httpx.AsyncClient(timeout=600, limits=httpx.Limits(max_connections=200)) as http:
        load = asyncio.create_task(ask_all(host.url, requests, http))
        await asyncio.to_thread(until, lambda: host.status()["throttle"]["inflight"] >= 30, 60, "load in flight")
        results = [await asyncio.to_thread(switch, host, *arguments) for arguments in names_and_more]
        return await load, results


async def test_forty_mixed_requests_survive_a_switch_there_and_back(host: RealHost) -> None:
    requests = mixed(260)
    async with httpx.AsyncClient(timeout=600, limits=httpx.Limits(max_connections=200)) as http:
        unswitched = await ask_all(host.url, requests, http)
    seen, results = await under_load(host, requests, ("b", "--tier", "reload", "--drain", "5"), ("a",))
    for code, result, stderr in results:
        assert (code, result["outcome"]) == (0, "switched"), stderr or result
    assert [result["tier"] for _, result, _ in results] == ["reload", "overlap"]
    assert results[0][1]["carried"] >= 10
    cut_off = [s for s in seen if s.status != 200 or s.error]
    # Nothing fails, but for answers that cannot be carried and were longer than the drain time, and those say so.
    assert {s.kind for s in cut_off} <= {"penalty", "JSON schema"}, [(s.kind, s.status, s.error) for s in cut_off]
    assert all("could not go on in the new engine" in (s.error or "") for s in cut_off)
    for before, after in zip(unswitched, seen, strict=True):
        if before.kind in GREEDY:
            assert after.content == before.content, before.kind
    assert host.status()["profile"]["name"] == "a"


async def test_requests_that_arrive_during_a_switch_wait_and_succeed(host: RealHost) -> None:
    async with httpx.AsyncClient(timeout=300) as http:
        under_way = asyncio.create_task(asyncio.to_thread(switch, host, "b", "--tier", "reload"))
        await asyncio.to_thread(until, lambda: host.status()["state"] == "switching", 120, "switching", 0.1)
        body = {"prompt": "The capital of France is", "max_tokens": 8}
        late = [asyncio.create_task(ask(http, host.url, "late", "/v1/completions", body)) for _ in range(5)]
        leaves = asyncio.create_task(ask(http, host.url, "leaves", "/v1/completions", body))
        await asyncio.to_thread(until, lambda: host.status()["queue"]["held"] == 6, 30, "held", 0.05)
        leaves.cancel()
        await asyncio.to_thread(until, lambda: host.status()["queue"]["held"] == 5, 30, "forgotten", 0.05)
        refused = await asyncio.to_thread(switch, host, "a")
        assert refused[0] == 4 and "switches to b since" in refused[2]
        assert "SWITCHING" in (await asyncio.to_thread(host.console, "status")).stdout
        for seen in await asyncio.gather(*late):
            assert seen.status == 200 and "Paris" in seen.texts[0]
        code, result, _ = await under_way
        assert (code, result["outcome"], result["held"]) == (0, "switched", 6)


def test_a_dry_run_forecasts_from_the_timelines_and_touches_nothing(host: RealHost) -> None:
    before = host.status()
    answer = host.console("switch", "a", "--dry-run", "--json", timeout_s=120)
    forecast = json.loads(answer.stdout)
    assert answer.returncode == 0 and forecast["ok"]
    assert {change["key"] for change in forecast["changes"]} >= {"engine.max_num_seqs"}
    assert any(phase["expected_s"] for phase in forecast["phases"] if phase["name"] == "start")
    after = host.status()
    assert (after["engine"]["generation"], after["state_version"]) == (
        before["engine"]["generation"],
        before["state_version"],
    )


@pytest.mark.parametrize(
    ("name", "tier", "reason"),
    [
        ("oom", "reload", "CUDA out of memory. Tried to allocate 20.00 GiB"),
        ("dies", "overlap", "SIGKILL"),
        ("noprobe", "overlap", "first token"),
        ("hangs", "overlap", "within 45 s"),
        ("badmodel", "reload", "badmodel"),
    ],
)
async def test_a_switch_that_fails_rolls_back_and_loses_nothing(
    host: RealHost, name: str, tier: str, reason: str
) -> None:
    family = {p.pid for p in host.children()}
    requests = [
        (
            "completion",
            "/v1/completions",
            {"prompt": f"Tale {n}", "max_tokens": 600, "ignore_eos": True, "stream": True},
        )
        for n in range(4)
    ]
    async with httpx.AsyncClient(timeout=600) as http:
        load = asyncio.create_task(ask_all(host.url, requests, http))
        await asyncio.to_thread(until, lambda: host.status()["throttle"]["inflight"] == 4, 60, "load in flight")
        code, result, stderr = await asyncio.to_thread(switch, host, name, "--tier", tier)
        assert code == 1, stderr
        assert result["outcome"] == "rolled_back" and reason in json.dumps(result)
        for seen in await load:
            assert (seen.status, seen.error, seen.usage["completion_tokens"]) == (200, None, 600)
    now = host.status()
    assert (now["state"], now["profile"]["name"]) == ("serving", "b")
    processes = len(family)
    until(lambda: len(host.children()) <= processes, 15, "no process left of the failed engine")
    metrics = host.metrics()
    assert metrics["vllm:generation_tokens_total"] > 0


def test_many_switches_leave_nothing_behind(host: RealHost) -> None:
    process = psutil.Process(host.status()["host"]["pid"])

    def figures() -> tuple[int, int, int, int]:
        shared = len(list(Path("/dev/shm").iterdir()))
        return process.num_fds(), process.num_threads(), len(process.children(recursive=True)), shared

    switch(host, "a", "--tier", "reload")
    first = figures()
    for name in ("b", "a"):
        assert switch(host, name, "--tier", "reload")[0] == 0
    last = figures()
    assert all(now <= then + 2 for now, then in zip(last, first, strict=True)), (first, last)
