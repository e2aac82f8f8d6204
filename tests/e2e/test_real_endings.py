"""Ends of a host that need their own start: a second signal, a profile the engine cannot run.

They start beside one another, four before the first test and two before the last but one: a start is mostly imports,
one after the other, and leaves half of a small machine idle.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
import pytest

from .conftest import SMALL
from .real_host import START_S, RealHost, alive, until

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]


def with_engine_key(tmp_path: Path, line: str, replaced: str | None = None) -> Path:
    """The test profile with one more `[engine]` key, or one line replaced."""
    text = (SMALL / "engine.toml").read_text()
    changed = tmp_path / "changed.toml"
    changed.write_text(text.replace(replaced, line) if replaced else text.replace("[engine]\n", f"[engine]\n{line}\n"))
    return changed


@dataclass(frozen=True)
class Begun:
    unknown_key: RealHost
    unknown_speculation_key: RealHost
    small_cache: RealHost
    sound: RealHost


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory, model: None) -> Iterator[Begun]:
    def start(line: str | None = None, replaced: str | None = None) -> RealHost:
        home = tmp_path_factory.mktemp("ending")
        profile = SMALL / "engine.toml" if line is None else with_engine_key(home, line, replaced)
        return RealHost(home, profile).start()

    hosts = Begun(
        unknown_key=start("max_model_length = 512"),
        unknown_speculation_key=start("ngram_prompt_lookup_max = 4", "prompt_lookup_max = 4"),
        small_cache=start("kv_cache_memory_bytes = 2_000_000", "kv_cache_memory_bytes = 50_000_000"),
        sound=start(),
    )
    try:
        yield hosts
    finally:
        for host in (hosts.unknown_key, hosts.unknown_speculation_key, hosts.small_cache, hosts.sound):
            host.end()


def test_an_engine_that_cannot_start_ends_the_host_with_the_engines_own_reason(begun: Begun) -> None:
    host = begun.small_cache  # looked at before the others: it shows its processes only while they live
    family: set[psutil.Process] = set()

    def has_ended() -> bool:
        family.update(host.children())
        return host.process.poll() is not None

    until(has_ended, START_S, "the end of the host")
    assert host.process.wait(0) == 1 and len(family) >= 2, "the host and an engine core"
    end = host.stderr()[-4000:]
    assert "engine-host: the engine did not start" in end
    assert "KV cache" in end.split("engine-host: the engine did not start")[1]
    until(lambda: not alive(list(family)), 15, "no process left")
    assert not host.socket_path.exists()


def test_an_unknown_engine_key_is_refused_with_the_nearest_name(begun: Begun) -> None:
    host = begun.unknown_key
    assert host.process.wait(START_S) == 2
    assert "max_model_length" in host.stderr() and "max_model_len" in host.stderr()
    assert "Traceback (most" not in host.stderr()
    assert not host.socket_path.exists()


def test_a_wrong_speculation_key_is_refused_before_anything_starts(begun: Begun) -> None:
    host = begun.unknown_speculation_key
    assert host.process.wait(START_S) == 2
    assert "engine.speculative_config.ngram_prompt_lookup_max" in host.stderr()
    assert "prompt_lookup_max" in host.stderr()


def test_a_second_signal_forces_and_leaves_no_child(begun: Begun) -> None:
    host = begun.sound
    host.wait_for_state("serving")
    family = [*host.children(), psutil.Process(host.process.pid)]
    body = {"model": "smollm2", "prompt": "Once", "max_tokens": 900, "ignore_eos": True, "stream": True}
    with host.slow(), httpx.stream("POST", f"{host.url}/v1/completions", json=body, timeout=120) as response:
        next(response.iter_lines())
        host.process.send_signal(signal.SIGTERM)
        until(lambda: host.status().get("state") == "draining", 10, "draining", 0.01)
        host.process.send_signal(signal.SIGTERM)
        assert host.process.wait(20) == 0
    until(lambda: not alive(family), 10, "no process left")


@pytest.fixture(scope="module")
def starting(tmp_path_factory: pytest.TempPathFactory, model: None) -> Iterator[tuple[RealHost, RealHost]]:
    """Two that have only just begun: one that is interrupted at once, and one that gets as far as its workers."""
    hosts = [RealHost(tmp_path_factory.mktemp("starting"), SMALL / "engine.toml").start() for _ in range(2)]
    try:
        yield hosts[0], hosts[1]
    finally:
        for host in hosts:
            host.end()


def test_a_signal_during_the_start_ends_it_at_once(starting: tuple[RealHost, RealHost]) -> None:
    host = starting[0]
    until(lambda: host.status().get("state") == "starting", 60, "the socket answers while the engine loads")
    family = [*until(host.children, 120, "an engine process"), psutil.Process(host.process.pid)]
    host.process.send_signal(signal.SIGINT)
    assert host.process.wait(30) == 0
    until(lambda: not alive(family), 10, "no process left")


def test_a_killed_host_leaves_no_process_behind(starting: tuple[RealHost, RealHost]) -> None:
    host = starting[1]
    pid = until(lambda: host.status().get("host", {}).get("pid"), 60, "the host's pid")
    left = until(lambda: len(found := host.leftovers()) >= 3 and found, START_S, "shared memory and sockets")
    family = host.children()
    assert len(family) >= 3, "the host, its engine core and a worker"
    psutil.Process(pid).kill()
    assert host.process.wait(20) == 1
    assert "killed by SIGKILL" in host.stderr()
    until(lambda: not alive(family), 10, "no process left")
    assert not [path for path in left if path.exists()]
