"""Dials, requests and blocks of a real engine, as an operator gets at them: the command line and the control socket.

The tests of this module share one host and run in the order of the file.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from .real_host import RealHost, until

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def host(steered: RealHost) -> RealHost:
    return steered.begin_on("engine")


class Streams:
    """Long answers under way; `ended` has what became of those that are over."""

    def __init__(self, host: RealHost, count: int) -> None:
        self.ended: list[str] = []
        self._threads = [threading.Thread(target=self._ask, args=(host, n)) for n in range(count)]
        for thread in self._threads:
            thread.start()

    def _ask(self, host: RealHost, n: int) -> None:
        body = {"model": "smollm2", "prompt": f"Story {n}: Once upon a time", "max_tokens": 800, "ignore_eos": True,
                "stream": True, "temperature": 0}  # fmt: skip
        error = ""
        with httpx.stream("POST", f"{host.url}/v1/completions", json=body, timeout=300) as response:
            for line in response.iter_lines():
                if line.startswith("data: {") and "error" in (chunk := json.loads(line[6:])):
                    error = json.dumps(chunk["error"])
        self.ended.append(error)

    def join(self) -> None:
        for thread in self._threads:
            thread.join(300)


@contextmanager
def streaming(host: RealHost, count: int) -> Iterator[Streams]:
    """So slowly that they are not over before they are ended here; with dials at their start afterwards."""
    with host.slow():
        streams = Streams(host, count)
        try:
            yield streams
        finally:
            for row in listed(host)["requests"]:
                host.change("requests.abort", id=row["id"])
            host.change("dials.set", values={"max_active_seqs": None})
    streams.join()


def told_of_running(host: RealHost) -> list[dict[str, Any]]:
    """Those that the scheduler has told of: its word may come after a request's first token."""
    return [row for row in listed(host)["requests"] if row["state"] == "running" and row["blocks"] is not None]


def dials(host: RealHost) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(host.console("dial", "--json").stdout)["dials"]
    return found


def listed(host: RealHost) -> dict[str, Any]:
    found: dict[str, Any] = host.ask("requests.list")["result"]
    return found


def test_the_dials_have_the_range_that_the_engine_was_started_with(host: RealHost) -> None:
    found = dials(host)
    assert (found["max_active_seqs"]["high"], found["speculative_tokens"]["high"]) == (16, 5)
    assert all(dial["value"] == dial["start"] and dial["who"] is None for dial in found.values())
    assert host.status()["engine"]["live_unavailable_reason"] is None


def test_a_dial_is_set_on_an_idle_engine_and_its_former_value_returns(host: RealHost) -> None:
    done = host.console("dial", "speculative_tokens=2", "--for", "3s", "--reason", "trying", "--json")
    assert done.returncode == 0, done.stderr
    outcome = json.loads(done.stdout)
    assert outcome["text"] == "speculative_tokens 5 → 2 for 3 s: trying"
    assert outcome["took_s"] < 2.0
    assert host.status()["dials"]["speculative_tokens"]["value"] == 2
    until(lambda: dials(host)["speculative_tokens"]["value"] == 5, 20, "the former value")
    assert "dials.returned" in [event["kind"] for event in host.events()]


@pytest.mark.parametrize(
    ("arguments", "exit_code"),
    [
        (["speculative_tokens=6"], 2),
        (["speculative_token=2"], 2),
        (["speculative_tokens=2", "--expect", "speculative_tokens=4"], 4),
    ],
)
def test_what_cannot_be_set_is_refused_and_nothing_changes(
    host: RealHost, arguments: list[str], exit_code: int
) -> None:
    before = dials(host)
    done = host.console("dial", *arguments)
    assert done.returncode == exit_code, done.stderr
    assert dials(host) == before


def test_fewer_run_at_once_when_dialled_so_and_the_others_wait(host: RealHost) -> None:
    host.console("dial", "max_active_seqs=2")
    with streaming(host, 6):
        until(lambda: len(listed(host)["requests"]) == 6, 60, "six requests")
        running = until(lambda: (rows := told_of_running(host)) and len(rows) == 2 and rows, 60, "two running requests")
        assert all(row["blocks"] > 0 and row["prompt_tokens"] > 0 for row in running)
        found = listed(host)
        assert found["by_state"]["waiting"] == 4
        assert found["unavailable_reason"] is None
        until(  # a snapshot is handed out again for 50 ms
            lambda: host.status()["queue"]["waiting_by_reason"] == {"capacity": 4}, 10, "four waiting in the snapshot"
        )
        assert host.status()["queue"]["oldest_wait_s"] > 0
        host.console("dial", "max_active_seqs=start")
        until(lambda: listed(host)["by_state"].get("running") == 6, 60, "all of them to run")


def test_one_request_is_ended_and_its_client_gets_an_error(host: RealHost) -> None:
    with streaming(host, 2) as streams:
        until(lambda: len(listed(host)["requests"]) == 2, 60, "two requests")
        wanted = listed(host)["requests"][0]["id"]
        done = host.console("requests", "abort", wanted, "--yes", "--reason", "runaway")
        assert done.returncode == 0, done.stderr
        until(lambda: streams.ended, 30, "the client to be told")
        assert "An operator ended this request" in streams.ended[0]
        assert wanted not in [row["id"] for row in listed(host)["requests"]]
        assert host.console("requests", "abort", wanted, "--yes").returncode == 2


def test_a_stream_of_messages_that_is_ended_gets_the_error_in_its_own_form(host: RealHost) -> None:
    asked = [{"role": "user", "content": "Tell me a long story."}]
    body = {"model": "smollm2", "max_tokens": 800, "stream": True, "messages": asked}
    with host.slow(), httpx.stream("POST", f"{host.url}/v1/messages", json=body, timeout=120) as response:
        lines = response.iter_lines()
        next(lines)
        [row] = listed(host)["requests"]
        host.change("requests.abort", id=row["id"])
        last = [json.loads(line[6:]) for line in lines if line.startswith("data: {")][-1]
    assert last["type"] == "error" and "An operator ended this request" in last["error"]["message"]


def test_the_blocks_of_map_snapshot_and_requests_agree(host: RealHost) -> None:
    with streaming(host, 4):
        until(lambda: len(told_of_running(host)) == 4, 60, "four running requests", found=lambda: listed(host))
        for _ in range(20):
            kv = host.status()["kv"]
            blocks = kv["blocks"]
            assert blocks["active"] + blocks["cached"] + blocks["free"] == blocks["total"]
            assert kv["usage"] == pytest.approx(blocks["active"] / blocks["total"], abs=1e-6)
            assert 0 <= kv["internal_waste"] < 1
            cells = host.ask("kv.map", {"cells": 64})["result"]["cells"]
            assert sum(map(sum, cells)) == blocks["total"]
    until(lambda: host.status()["kv"]["blocks"]["active"] == 0, 30, "no block in use")


def test_a_profile_that_differs_in_its_dials_alone_is_switched_to_live(host: RealHost) -> None:
    assert host.console("dial", "speculative_tokens=1").returncode == 0
    generation = host.status()["engine"]["generation"]
    outcome = host.switch("dialled")
    assert outcome.exit_code == 0, outcome.stderr
    assert outcome.result["tier"] == "live"
    found = dials(host)
    assert (found["max_active_seqs"]["value"], found["speculative_tokens"]["value"]) == (4, 5)
    assert host.status()["engine"]["generation"] == generation
    assert "dials.reset" in [event["kind"] for event in host.events()]
