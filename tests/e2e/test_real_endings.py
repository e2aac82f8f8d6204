"""Ends of a host that need their own start: a second signal, a profile the engine cannot run."""

from __future__ import annotations

import json
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import psutil
import pytest

from .conftest import HERE
from .real_host import RealHost, alive, until

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]


def with_engine_key(tmp_path: Path, line: str, replaced: str | None = None) -> Path:
    """The test profile with one more `[engine]` key, or one line replaced."""
    text = (HERE / "engine.toml").read_text()
    changed = tmp_path / "changed.toml"
    changed.write_text(text.replace(replaced, line) if replaced else text.replace("[engine]\n", f"[engine]\n{line}\n"))
    return changed


def test_an_unknown_engine_key_is_refused_with_the_nearest_name(tmp_path: Path) -> None:
    host = RealHost(tmp_path, with_engine_key(tmp_path, "max_model_length = 512")).start()
    assert host.process.wait(120) == 2
    assert "max_model_length" in host.stderr() and "max_model_len" in host.stderr()
    assert "Traceback (most" not in host.stderr()
    assert not host.socket_path.exists()


def test_a_wrong_speculation_key_is_refused_before_anything_starts(tmp_path: Path) -> None:
    profile = with_engine_key(tmp_path, "ngram_prompt_lookup_max = 4", "prompt_lookup_max = 4")
    host = RealHost(tmp_path, profile).start()
    assert host.process.wait(120) == 2
    assert "engine.speculative_config.ngram_prompt_lookup_max" in host.stderr()
    assert "prompt_lookup_max" in host.stderr()


def test_an_engine_that_cannot_start_ends_the_host_with_the_engines_own_reason(tmp_path: Path) -> None:
    profile = with_engine_key(tmp_path, "kv_cache_memory_bytes = 2_000_000", "kv_cache_memory_bytes = 50_000_000")
    host = RealHost(tmp_path, profile).start()
    family = until(host.children, 120, "an engine process")
    assert host.process.wait(240) == 1
    end = host.stderr()[-4000:]
    assert "engine-host: the engine did not start" in end
    assert "KV cache" in end.split("engine-host: the engine did not start")[1]
    until(lambda: not alive(family), 15, "no process left")
    assert not host.socket_path.exists()


def test_a_second_signal_forces_and_leaves_no_child(tmp_path: Path) -> None:
    host = RealHost(tmp_path, HERE / "engine.toml").start()
    try:
        host.wait_for_state("serving")
        family = [*host.children(), psutil.Process(host.process.pid)]
        body = {"model": "smollm2", "prompt": "Once", "max_tokens": 900, "ignore_eos": True, "stream": True}
        with httpx.stream("POST", f"{host.url}/v1/completions", json=body, timeout=120) as response:
            next(response.iter_lines())
            host.process.send_signal(signal.SIGTERM)
            until(lambda: host.status().get("state") == "draining", 10, "draining")
            host.process.send_signal(signal.SIGTERM)
            assert host.process.wait(20) == 0
        until(lambda: not alive(family), 10, "no process left")
    finally:
        host.end()


def test_a_stop_without_a_drain_is_quick_and_tells_clients_that_their_answer_is_not_finished(tmp_path: Path) -> None:
    host = RealHost(tmp_path, HERE / "engine.toml").start()
    try:
        host.wait_for_state("serving")
        left = host.leftovers()
        body = {"model": "smollm2", "prompt": "Once", "max_tokens": 900, "ignore_eos": True}
        with ThreadPoolExecutor() as threads, httpx.Client(base_url=host.url, timeout=120) as client:
            whole = threads.submit(client.post, "/v1/completions", json=body)
            with client.stream("POST", "/v1/completions", json={**body, "stream": True}) as stream:
                lines = stream.iter_lines()
                next(lines)
                until(lambda: host.status()["queue"]["running"] == 2, 60, "both run")
                stopped = threads.submit(host.console, "stop", "--drain", "0", "--yes", "--json")
                rest = [line for line in lines if line]
            assert (answer := whole.result()).status_code == 503
            assert "before this answer was finished" in answer.json()["error"]["message"]
            assert any("before this answer was finished" in line for line in rest[-2:]), rest[-2:]
        assert stopped.result().returncode == 0
        assert json.loads(stopped.result().stdout)["took_s"] < 5
        assert host.process.wait(10) == 0
        assert len(left) >= 3 and not [path for path in left if path.exists()]
    finally:
        host.end()


def test_a_signal_during_the_start_ends_it_at_once(tmp_path: Path) -> None:
    host = RealHost(tmp_path, HERE / "engine.toml").start()
    try:
        until(lambda: host.status().get("state") == "starting", 30, "the socket answers while the engine loads")
        family = [*until(host.children, 120, "an engine process"), psutil.Process(host.process.pid)]
        host.process.send_signal(signal.SIGINT)
        assert host.process.wait(30) == 0
        until(lambda: not alive(family), 10, "no process left")
    finally:
        host.end()


def test_a_killed_host_leaves_no_process_behind(tmp_path: Path) -> None:
    host = RealHost(tmp_path, HERE / "engine.toml").start()
    try:
        pid = until(lambda: host.status().get("host", {}).get("pid"), 30, "the host's pid")
        family = until(lambda: (c := host.children()) and len(c) >= 2 and c, 120, "an engine process")
        left = until(lambda: len(found := host.leftovers()) >= 3 and found, 120, "shared memory and sockets")
        psutil.Process(pid).kill()
        assert host.process.wait(20) == 1
        assert "killed by SIGKILL" in host.stderr()
        until(lambda: not alive(family), 10, "no process left")
        assert not [path for path in left if path.exists()]
    finally:
        host.end()
