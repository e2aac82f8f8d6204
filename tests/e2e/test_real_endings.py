"""Ends of a host that need their own start: a second signal, a profile the engine cannot run.

They start beside one another, three before the first test and two before the last but one: a start is mostly imports,
one after the other, and leaves half of a small machine idle.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import psutil
import pytest

from .conftest import SMALL
from .real_host import START_S, RealHost, alive, until

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]


@dataclass(frozen=True)
class Begun:
    unknown_keys: RealHost
    small_cache: RealHost
    sound: RealHost


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory, model: None) -> Iterator[Begun]:
    def start(**changed: str) -> RealHost:
        """The test profile, where some keys have another line."""
        home, text = tmp_path_factory.mktemp("ending"), (SMALL / "engine.toml").read_text()
        for key, line in changed.items():
            text, found = re.subn(rf"^{key} = .*$", line, text, flags=re.MULTILINE)
            assert found == 1, key
        (home / "engine.toml").write_text(text)
        return RealHost(home, home / "engine.toml").start()

    hosts = Begun(
        unknown_keys=start(max_model_len="max_model_length = 512", prompt_lookup_max="ngram_prompt_lookup_max = 4"),
        small_cache=start(kv_cache_memory_bytes="kv_cache_memory_bytes = 2_000_000"),
        sound=start(),
    )
    try:
        yield hosts
    finally:
        for host in (hosts.unknown_keys, hosts.small_cache, hosts.sound):
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


def test_unknown_engine_keys_are_refused_with_the_nearest_names_before_anything_starts(begun: Begun) -> None:
    host = begun.unknown_keys
    assert host.process.wait(START_S) == 2
    said = host.stderr()
    assert 'engine.max_model_length: did you mean "max_model_len"' in said
    assert 'engine.speculative_config.ngram_prompt_lookup_max: did you mean "prompt_lookup_max"' in said
    assert "Traceback (most" not in said
    assert not host.socket_path.exists()


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
