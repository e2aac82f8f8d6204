"""End to end on real vLLM on CPU: serve, count, crash, recover, give up, drain.

The tests of this module share one host and run in the order of the file: its life from the first request to the last
signal.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import psutil
import pytest

from .real_host import RealHost, alive, until

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

QUOTE = "Repeat this sentence five times: the quick brown fox jumps over the lazy dog near the river bank."


def chat(content: str, **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": content}]
    return {"model": "smollm2", "messages": messages, "temperature": 0, **more}


def completion(prompt: str, **more: Any) -> dict[str, Any]:
    return {"model": "smollm2", "prompt": prompt, "temperature": 0, **more}


def streamed(host: RealHost, path: str, body: dict[str, Any]) -> tuple[str, dict[str, int]]:
    """Text and usage of a streamed answer."""
    text, usage = "", {}
    body = {**body, "stream": True, "stream_options": {"include_usage": True}}
    with httpx.stream("POST", f"{host.url}{path}", json=body, timeout=120) as response:
        assert response.status_code == 200
        for line in response.iter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            chunk = json.loads(line[6:])
            usage = chunk.get("usage") or usage
            for choice in chunk["choices"]:
                text += choice.get("text") or choice.get("delta", {}).get("content") or ""
    return text, usage


def test_a_completion_is_the_same_streamed_and_not(host: RealHost) -> None:
    body = completion("The capital of France is", max_tokens=24)
    whole = httpx.post(f"{host.url}/v1/completions", json=body, timeout=120).json()
    text, usage = streamed(host, "/v1/completions", body)
    assert "Paris" in text
    assert text == whole["choices"][0]["text"]
    assert usage["completion_tokens"] == whole["usage"]["completion_tokens"] == 24


def test_a_chat_is_the_same_streamed_and_not(host: RealHost) -> None:
    body = chat(QUOTE, max_tokens=60)
    whole = httpx.post(f"{host.url}/v1/chat/completions", json=body, timeout=120).json()
    text, usage = streamed(host, "/v1/chat/completions", body)
    assert text == whole["choices"][0]["message"]["content"]
    assert usage["prompt_tokens"] == whole["usage"]["prompt_tokens"]


def test_every_vllm_endpoint_is_there(host: RealHost) -> None:
    assert httpx.get(f"{host.url}/health", timeout=30).status_code == 200
    assert httpx.get(f"{host.url}/v1/models", timeout=30).json()["data"][0]["id"] == "smollm2"
    assert httpx.get(f"{host.url}/version", timeout=30).json()["version"] == host.status()["engine"]["vllm_version"]
    tokens = httpx.post(f"{host.url}/tokenize", json={"model": "smollm2", "prompt": "hello world"}, timeout=30).json()
    assert tokens["count"] == 2
    refused = httpx.post(f"{host.url}/v1/completions", json=completion("x", model="no-such-model"), timeout=30)
    assert refused.status_code == 404


async def test_counts_match_what_was_sent_and_vllms_own_counters_to_the_token(host: RealHost) -> None:
    before, sent_before = host.status(), host.metrics()
    bodies = [chat(f"{QUOTE} Number {n}.", max_tokens=40, ignore_eos=True) for n in range(8)]
    bodies += [chat(QUOTE, max_tokens=20, n=2, temperature=0.8, seed=n) for n in range(2)]
    async with httpx.AsyncClient(timeout=240) as client:
        answers = await asyncio.gather(*(client.post(f"{host.url}/v1/chat/completions", json=body) for body in bodies))
    usages = [answer.json()["usage"] for answer in answers]
    finished = 8 + 2 * 2

    def settled() -> dict[str, Any] | None:
        now = host.status()
        done = now["throughput"]["requests_total"] - before["throughput"]["requests_total"]
        return now if done == finished else None

    after, metrics = until(settled, 30, "all requests counted"), host.metrics()

    def grown(part: str, key: str) -> int:
        return int(after[part][key] - before[part][key])

    def grown_metric(name: str) -> int:
        return int(metrics[name] - sent_before.get(name, 0))

    completion_tokens = sum(usage["completion_tokens"] for usage in usages)
    assert grown("throughput", "generation_tokens_total") == completion_tokens
    # n choices prefill the prompt n times; usage counts it once.
    prompt_tokens = sum(u["prompt_tokens"] * b.get("n", 1) for u, b in zip(usages, bodies, strict=True))
    assert grown("throughput", "prompt_tokens_total") == prompt_tokens
    assert grown("throughput", "prompt_tokens_total") == grown_metric("vllm:prompt_tokens_total")
    assert grown("throughput", "generation_tokens_total") == grown_metric("vllm:generation_tokens_total")
    assert grown("speculation", "drafts_total") == grown_metric("vllm:spec_decode_num_drafts_total")
    assert grown("speculation", "drafted_total") == grown_metric("vllm:spec_decode_num_draft_tokens_total") > 0
    assert grown("speculation", "accepted_total") == grown_metric("vllm:spec_decode_num_accepted_tokens_total") > 0
    assert grown("prefix_cache", "queried_tokens_total") == grown_metric("vllm:prefix_cache_queries_total")
    assert grown("prefix_cache", "hit_tokens_total") == grown_metric("vllm:prefix_cache_hits_total") > 0
    assert grown("queue", "preemptions_total") == grown_metric("vllm:num_preemptions_total")
    # Everything since the start of the engine lies in the longest latency window.
    assert after["latency"]["ttft"]["5m"]["n"] == metrics["vllm:time_to_first_token_seconds_count"]
    assert after["latency"]["itl"]["5m"]["n"] == metrics["vllm:inter_token_latency_seconds_count"]
    assert after["latency"]["e2e"]["5m"]["n"] == metrics["vllm:e2e_request_latency_seconds_count"]
    assert after["speculation"]["k"] == after["speculation"]["k_max"] == 5
    assert 0 < after["speculation"]["acceptance_rate"] <= 1
    assert 1 < after["speculation"]["mean_acceptance_length"] <= 6


async def test_a_snapshot_under_load_agrees_with_vllms_gauges(host: RealHost) -> None:
    seen_enough = asyncio.Event()

    async def ask_until_seen(client: httpx.AsyncClient, n: int) -> None:
        """One request after another, however fast this machine answers them, and no two clients in step."""
        body = completion(f"Story {n}: once upon a time", max_tokens=80 + 7 * n, ignore_eos=True)
        while not seen_enough.is_set():
            answer = await client.post(f"{host.url}/v1/completions", json=body)
            assert answer.status_code == 200, answer.text

    def busy() -> tuple[dict[str, Any], dict[str, float]] | None:
        now, metrics, again = host.status(), host.metrics(), host.status()
        is_busy = now["queue"]["running"] >= 8 and now["kv"]["usage"] > 0.1
        is_steady = abs(again["kv"]["usage"] - now["kv"]["usage"]) < 0.1
        return (now, metrics) if is_busy and is_steady and metrics["vllm:num_requests_running"] >= 8 else None

    async with httpx.AsyncClient(timeout=240) as client:
        load = [asyncio.create_task(ask_until_seen(client, n)) for n in range(12)]
        try:
            with host.slow(0.05):
                now, metrics = await asyncio.to_thread(until, busy, 60, "requests running")
        finally:
            seen_enough.set()
            await asyncio.gather(*load)
    assert now["queue"]["running"] <= 12
    assert 8 <= now["throttle"]["inflight"] <= 12
    assert abs(now["kv"]["usage"] - metrics["vllm:kv_cache_usage_perc"]) < 0.3
    assert now["kv"]["blocks"]["active"] == round(now["kv"]["usage"] * now["kv"]["blocks"]["total"])
    assert now["throughput"]["generation_tokens_per_s"] > 0
    assert now["host"]["process_memory_bytes"] > 200_000_000


def test_clients_that_hang_up_leave_no_running_request_behind(host: RealHost) -> None:
    for _ in range(5):
        body = completion("Once upon a time", max_tokens=400, ignore_eos=True, stream=True)
        with httpx.stream("POST", f"{host.url}/v1/completions", json=body, timeout=60) as response:
            next(response.iter_lines())

    def is_idle() -> bool:
        now = host.status()
        return not (now["queue"]["running"] or now["kv"]["usage"] or now["throttle"]["inflight"])

    until(is_idle, 30, "idle gauges")


def test_the_start_of_the_engine_answers_the_check_of_its_profile_as_a_process_would(host: RealHost) -> None:
    learned = json.loads((host.home / "state" / "preflight-answers.json").read_text())["answers"]
    assert len(learned) == 2, "the names that vLLM takes, and the configuration"
    check = [sys.executable, "-m", "engine_host.cli", "check", str(host.profile), "--json"]
    with subprocess.Popen(check, env=host.environment, stdout=subprocess.PIPE, text=True) as alone:
        asked = host.console("profiles", "check", host.profile.stem, "--on-host", "--json")
        told, fresh = json.loads(asked.stdout), json.loads(alone.communicate(timeout=120)[0])
    measured = ("memory.", "port.")

    def lasting(findings: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [finding for finding in findings if not finding["id"].startswith(measured)]

    assert lasting(told["findings"]) == lasting(fresh["findings"])
    for key in ("digest", "kv_capacity_tokens", "longest_tokens", "needed_bytes", "unchecked"):
        assert told[key] == fresh[key], key


def test_a_second_host_on_the_same_port_or_socket_is_refused_naming_the_holder(host: RealHost) -> None:
    other = RealHost(host.home / "other", host.profile, port=host.port).start()
    assert other.process.wait(60) == 2
    holder = str(host.status()["host"]["pid"])
    assert f"port {host.port}" in other.stderr() and holder in other.stderr()
    assert "Traceback" not in other.stderr()
    same_socket = RealHost(host.home, host.profile)
    seen = len(host.stderr())
    same_socket.start()
    assert same_socket.process.wait(60) == 2
    assert holder in host.stderr()[seen:]
    assert json.loads(host.console("status", "--json").stdout)["state"] == "serving"


async def healths(client: httpx.AsyncClient, url: str) -> list[httpx.Response]:
    """Of the second after a kill, which has three answers: alive yet, dead without a reason yet, dead."""
    began, answers = time.monotonic(), list[httpx.Response]()
    while time.monotonic() - began < 1.0:
        answers.append(await client.get(f"{url}/health"))
        await asyncio.sleep(0.01)
    return answers


async def test_a_killed_engine_core_is_dead_within_a_second_and_clients_get_503(host: RealHost) -> None:
    core = psutil.Process(host.status()["engine"]["core_pids"][0])
    family = [core, *core.children(recursive=True)]
    async with httpx.AsyncClient(timeout=240) as client:
        body = completion("Once upon a time", max_tokens=900, ignore_eos=True)
        with host.slow():
            load = [asyncio.create_task(client.post(f"{host.url}/v1/completions", json=body)) for _ in range(4)]
            await asyncio.to_thread(until, lambda: host.status()["queue"]["running"] == 4, 60, "load running")
            left = host.leftovers()
            os.kill(core.pid, signal.SIGKILL)
        killed_at = time.time()
        health = asyncio.create_task(healths(client, host.url))
        answers = await asyncio.gather(*load)
        late = await client.post(f"{host.url}/v1/completions", json=body)
        ill = [answer for answer in await health if answer.status_code != 200]
    for answer in [*answers, late, *ill]:
        assert answer.status_code == 503
        assert answer.json()["error"]["type"] == "service_unavailable"
        assert "engine" in answer.json()["error"]["message"]
        assert answer.json()["state"] in ("dead", "recovering") and answer.headers["retry-after"]
    died = await asyncio.to_thread(
        until, lambda: [e for e in host.events() if e["kind"] == "engine.died"], 10, "an event of the death"
    )
    assert died[-1]["at"] - killed_at < 1.0
    assert "SIGKILL" in died[-1]["text"]
    until(lambda: not alive(family), 15, "no process of the dead engine left")
    assert len(left) >= 3
    until(lambda: not [path for path in left if path.exists()], 15, "nothing that it put down left")


def test_the_host_starts_it_again_and_serves(host: RealHost) -> None:
    now = host.wait_for_state("serving")
    assert now["engine"]["generation"] == 2
    assert now["engine"]["crashes_in_window"] == 1
    assert "SIGKILL" in now["engine"]["failure"]["reason"]
    assert now["engine"]["failure"]["recovered_at"] > now["engine"]["failure"]["at"]
    body = completion("The capital of France is", max_tokens=8)
    assert "Paris" in httpx.post(f"{host.url}/v1/completions", json=body, timeout=120).json()["choices"][0]["text"]


def test_it_gives_up_after_three_crashes_and_says_why(host: RealHost) -> None:
    def kill_a_core() -> bool:
        for child in host.children():
            with contextlib.suppress(psutil.Error):  # just gone
                if "EngineCore" in child.name() or "EngineCore" in " ".join(child.cmdline()):
                    child.kill()
                    return True
        return False

    for crashes in (2, 3):
        until(kill_a_core, 120, "an engine core to kill")
        until(
            lambda crashes=crashes: host.status()["engine"]["crashes_in_window"] == crashes, 60, f"crash {crashes} seen"
        )
    now = host.status()
    assert (now["state"], now["engine"]["restart_in_s"]) == ("dead", None)
    assert now["engine"]["failure"]["reason"]
    assert any("giving up" in event["text"] for event in host.events())
    refused = httpx.post(f"{host.url}/v1/completions", json=completion("x"), timeout=30)
    assert refused.status_code == 503 and "not restarted" in refused.json()["error"]["message"]


def test_an_operator_brings_it_back_with_restart(host: RealHost) -> None:
    answer = host.console("restart", "--yes", "--reason", "test", "--json", timeout_s=300)
    assert answer.returncode == 0, answer.stderr
    assert host.status()["state"] == "serving"
    audit = [json.loads(line) for line in (host.home / "state" / "audit.jsonl").read_text().splitlines()]
    assert [entry["method"] for entry in audit if entry.get("method")][:1] == ["engine.restart"]
    assert len(audit) >= 2


def test_ctrl_c_drains_lets_the_stream_finish_and_leaves_nothing_behind(host: RealHost) -> None:
    """Who waits at the gate is told at once, and who comes then."""
    family = [*host.children(), psutil.Process(host.process.pid)]
    left, said = host.leftovers(), len(host.stderr())
    host.change("throttle.set", limits={"max_inflight": 1})
    body = completion("Once upon a time", max_tokens=400, ignore_eos=True, stream=True)
    ask = functools.partial(httpx.post, f"{host.url}/v1/completions", json=completion("x"), timeout=120)
    with contextlib.ExitStack() as slowly, ThreadPoolExecutor() as threads:
        slowly.enter_context(host.slow())
        with httpx.stream("POST", f"{host.url}/v1/completions", json=body, timeout=120) as response:
            lines = response.iter_lines()
            next(lines)
            waits = threads.submit(ask)
            until(lambda: host.status()["queue"]["held"] == 1, 30, "one to wait at the gate")
            os.killpg(host.process.pid, signal.SIGINT)  # as a terminal does: to the whole foreground group
            until(lambda: host.status().get("state") == "draining", 10, "draining")
            assert "1 request left" in host.status()["engine"]["phase"]
            for refused in (waits.result(), ask()):
                assert refused.status_code == 503 and int(refused.headers["retry-after"]) >= 1
                assert refused.json()["state"] == "draining"
            slowly.close()
            rest = list(lines)
    assert rest[-1] == "data: [DONE]" or "data: [DONE]" in rest
    assert host.process.wait(60) == 0
    until(lambda: not alive(family), 10, "no process left")
    assert not host.socket_path.exists()
    assert len(left) >= 3 and not [path for path in left if path.exists()]
    end = host.stderr()[said:]
    assert end.splitlines()[-1].startswith(f"engine-host: stopped profile engine, port {host.port} in ")
    assert "Traceback" not in end and "leaked" not in end
