"""The throttle on a real host: from the command line to the gate, over a live switch, a crash and a pause.

The tests run in the order of the file.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from .real_host import RealHost, until

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def host(steered: RealHost) -> RealHost:
    return steered.begin_on("engine")


class Asking(threading.Thread):
    """One request, and its answer once it is there."""

    def __init__(self, host: RealHost, max_tokens: int = 8) -> None:
        super().__init__()
        self.status: int | None = None
        self._url = f"{host.url}/v1/completions"
        self._body = {"model": "smollm2", "prompt": "The capital of France is", "max_tokens": max_tokens}
        self.start()

    def run(self) -> None:
        self.status = httpx.post(self._url, json=self._body, timeout=300).status_code


def sheet(host: RealHost) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(host.console("throttle", "show", "--json").stdout)
    return found


def texts(host: RealHost, kind: str) -> list[str]:
    return [event["text"] for event in host.events() if event["kind"] == kind]


def test_a_cap_for_a_while_holds_who_comes_next_and_ends_with_an_event(host: RealHost) -> None:
    done = host.console("throttle", "set", "--max-inflight", "1", "--for", "6s", "--reason", "test", "--json")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["text"] == "max_inflight none → 1 for 6 s: test"
    assert said["throttle"]["limits"]["max_inflight"]["value"] == 1
    with host.slow():
        first, second = Asking(host, 200), Asking(host)
        until(lambda: host.status()["queue"]["held"] == 1, 10, "one to wait at the gate", 0.02)
        until(lambda: host.status()["throttle"]["max_inflight"] is None, 10, "the end of it")
    assert any(text.startswith("max_inflight 1 → none: the 6 s of ") for text in texts(host, "throttle.returned"))
    first.join()
    second.join()
    assert (first.status, second.status) == (200, 200)


def test_a_profile_that_differs_in_its_throttle_alone_touches_no_engine(host: RealHost) -> None:
    before = host.status()["engine"]
    result = host.switch("capped").result
    assert (result["outcome"], result["tier"]) == ("switched", "live")
    assert next(phase["took_s"] for phase in result["phases"] if phase["name"] == "release") < 0.05
    now = host.status()
    assert (now["engine"]["generation"], now["engine"]["core_pids"]) == (before["generation"], before["core_pids"])
    assert sheet(host)["limits"]["max_inflight"]["profile"] == 2
    assert "max_inflight none → 2, hold_queue 256 → 8: as capped says" in texts(host, "throttle.profile")


def test_what_cannot_be_is_refused_with_the_exit_code_for_it(host: RealHost) -> None:
    unknown = host.console("throttle", "clear", "max_inflght")
    assert unknown.returncode == 2 and 'did you mean "max_inflight"?' in unknown.stderr
    stale = host.console("throttle", "set", "--max-inflight", "4", "--expect", "max_inflight=64")
    assert stale.returncode == 4 and "max_inflight is 2; this call expected 64" in stale.stderr


def test_a_pause_a_limit_and_a_dial_outlive_the_engine(host: RealHost) -> None:
    assert host.console("dial", "speculative_tokens=1", "--reason", "holds").returncode == 0
    assert host.console("throttle", "set", "--hold-queue", "5", "--for", "1h").returncode == 0
    paused = host.console("pause", "--reason", "test")
    assert paused.returncode == 0 and "the host is paused until `vllm-console resume`" in paused.stdout
    before = host.status()
    os.kill(before["engine"]["core_pids"][0], signal.SIGKILL)
    until(lambda: host.status()["state"] in ("dead", "recovering"), 10, "its death", 0.02)
    now = host.wait_for_state("paused")
    assert now["state_version"] > before["state_version"]
    assert now["engine"]["generation"] == before["engine"]["generation"] + 1
    assert now["dials"]["speculative_tokens"]["value"] == 1
    assert any("speculative_tokens" in text for text in texts(host, "dials.kept"))
    assert now["throttle"]["limited_by"] == ["hold_queue", "paused"]
    assert any("paused (" in text and "hold_queue 5" in text for text in texts(host, "throttle.kept"))


def test_who_comes_meanwhile_is_answered_once_it_is_resumed(host: RealHost) -> None:
    waits = Asking(host)
    until(lambda: host.status()["queue"]["held"] == 1, 10, "it to wait", 0.02)
    time.sleep(0.3)
    assert waits.status is None
    assert httpx.get(f"{host.url}/health", timeout=30).status_code == 200
    assert "PAUSED" in host.console("status").stdout
    assert host.console("resume").returncode == 0
    waits.join()
    assert waits.status == 200 and host.status()["state"] == "serving"


def test_a_gate_that_drains_says_when_to_come_again(host: RealHost) -> None:
    assert host.console("throttle", "set", "--drain", "--for", "5m").returncode == 0
    body = {"model": "smollm2", "prompt": "x", "max_tokens": 1}
    answer = httpx.post(f"{host.url}/v1/completions", json=body, timeout=30)
    assert answer.status_code == 503 and 250 < int(answer.headers["retry-after"]) <= 300
    assert host.status()["state"] == "draining"
    assert host.console("throttle", "clear").returncode == 0
    assert host.status()["throttle"]["limited_by"] == []
    assert httpx.post(f"{host.url}/v1/completions", json=body, timeout=60).status_code == 200


def test_every_change_is_in_the_audit_log_with_its_reason(host: RealHost) -> None:
    lines = [json.loads(line) for line in Path(host.home / "state" / "audit.jsonl").read_text().splitlines()]
    done = {(line["method"], line["phase"], line["reason"]) for line in lines}
    assert {("throttle.set", "intent", "test"), ("pause", "outcome", "test"), ("resume", "outcome", "")} <= done
