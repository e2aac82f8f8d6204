"""Automatic throttling on a real engine that chokes: more clients than its KV cache holds, and then none."""

from __future__ import annotations

import threading
import time

import httpx
import pytest

from .real_host import RealHost, until

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

CLIENTS = 32
ANSWER_TOKENS = 120


@pytest.fixture
def host(steered: RealHost) -> RealHost:
    return steered.begin_on("choking")


class Crowd:
    """Clients that all ask at once."""

    def __init__(self, host: RealHost) -> None:
        self.statuses: list[int] = []
        self._threads = [threading.Thread(target=self._ask, args=(host, n)) for n in range(CLIENTS)]
        for thread in self._threads:
            thread.start()

    def _ask(self, host: RealHost, n: int) -> None:
        body = {
            "model": "smollm2",
            "prompt": f"Tale {n}: " + "once upon a time there was " * 12,
            "max_tokens": ANSWER_TOKENS,
            "ignore_eos": True,
        }
        self.statuses.append(httpx.post(f"{host.url}/v1/completions", json=body, timeout=400).status_code)

    def wait(self) -> None:
        for thread in self._threads:
            thread.join()


def test_it_caps_a_crowd_and_lets_go_when_the_crowd_has_gone(host: RealHost) -> None:
    started_with = {name: dial["value"] for name, dial in host.status()["dials"].items()}
    assert host.console("throttle", "auto", "on", "--reason", "test").returncode == 0
    with host.slow(0.05):  # or a quick engine is through with them before they have choked it for long enough
        crowd = Crowd(host)
        cap = until(lambda: host.status()["throttle"]["max_inflight"], 120, "a cap", 0.1)
        assert 1 <= cap < CLIENTS
        turned = until(
            lambda: [name for name, dial in host.status()["dials"].items() if dial["who"] == "auto"],
            30,
            "dials follow",
            0.1,
        )
    assert set(turned) <= {"max_active_seqs", "speculative_tokens"}
    crowd.wait()
    assert crowd.statuses == [200] * CLIENTS
    gone = time.monotonic()
    until(lambda: host.status()["throttle"]["max_inflight"] is None, 60, "the cap is gone", 0.1)
    assert time.monotonic() - gone <= 10.0
    until(lambda: {n: d["value"] for n, d in host.status()["dials"].items()} == started_with, 30, "dials return", 0.1)
    texts = [event["text"] for event in host.events() if event["kind"] == "throttle.auto"]
    assert ": cap none → " in texts[0]
    assert texts[-1].endswith(" → none")
