"""What a host says of itself before anything is started."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from engine_host.engine.port import EngineStartError, StepStats
from engine_host.host import EngineHost, HostOptions, start_failure
from engine_host.profiles import build_profile
from engine_host.protocol.methods import ThrottleSet
from tests.unit.gateway.clients import Client

from .scripted_engine import ScriptedEngine
from .scripted_scheduler import ScriptedScheduler, front_request


def host_on(address: str, directory: Path, auto: str = "off", **server: Any) -> EngineHost:
    content = {"schema": 1, "engine": {"model": "org/name"}, "server": server, "throttle": {"auto": {"mode": auto}}}
    profile = build_profile(content, Path("demo.toml"))
    return EngineHost(
        HostOptions(
            profile=profile,
            http_host=address,
            http_port=8000,
            socket_path=directory / "host.sock",
            state_dir=directory,
            socket_group=None,
            profiles_dir=directory,
        )
    )


@pytest.mark.parametrize(
    ("address", "server", "url"),
    [
        ("127.0.0.1", {}, "http://127.0.0.1:8000"),
        ("::1", {}, "http://[::1]:8000"),
        ("127.0.0.1", {"ssl_certfile": "cert.pem", "ssl_keyfile": "key.pem"}, "https://127.0.0.1:8000"),
    ],
)
def test_the_banner_and_the_snapshot_say_how_the_api_is_reached(
    tmp_path: Path, address: str, server: dict[str, Any], url: str
) -> None:
    host = host_on(address, tmp_path, **server)
    assert f"API on {url}\n" in host.banner
    assert host.snapshot().host.url == url


def test_the_model_has_its_name_before_any_engine_runs(tmp_path: Path) -> None:
    assert host_on("127.0.0.1", tmp_path).snapshot().engine.model == "name"


def test_a_failed_start_does_not_call_ordinary_lines_errors(tmp_path: Path) -> None:
    told = start_failure(EngineStartError("it was killed", last_lines=["INFO loading"]), tmp_path / "engine.log").fact
    assert "It printed no error; its last lines:\n    INFO loading" in told
    told = start_failure(EngineStartError("it failed", ["ValueError: no"], ["x"]), tmp_path / "engine.log").fact
    assert "The engine's last error lines:\n    ValueError: no" in told


def test_a_stuck_queue_is_told_once_with_the_request_and_what_to_do(tmp_path: Path) -> None:
    host = host_on("127.0.0.1", tmp_path)
    engine = ScriptedEngine(unfinished=1, front=[front_request("cmpl-7", prompt=9_000)])
    host._lifecycle._service.engine = engine
    host._store.record(StepStats(0, running=0, waiting=1, kv_usage=0.0))
    host._look()
    host._look()
    [event] = host.events.after(0, 10).events
    assert event.kind == "engine.stuck"
    assert event.text == (
        "STUCK: the request cmpl-7 can never be scheduled: its prompt has 9,000 tokens, the KV cache holds 3,200; "
        "`vllm-console requests list` names it, `requests abort` ends it"
    )
    engine.front, engine.unfinished = [], 0
    host._look()
    assert host.events.after(event.seq, 10).events[0].text == "no longer stuck: requests run again"


async def test_the_last_line_says_what_was_stopped_and_how_long_it_took(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = host_on("127.0.0.1", tmp_path)

    async def stopped(drain_timeout_s: float, who: str) -> str:
        return "host stopped"

    monkeypatch.setattr(host._lifecycle, "stop", stopped)
    await host.stop_host(0.0, "ops")
    assert re.fullmatch(r"engine-host: stopped profile demo, port 8000 in 0\.\d s", host.last_line)


def test_a_look_into_the_scheduler_is_offered_while_the_engine_that_serves_allows_it(tmp_path: Path) -> None:
    host = host_on("127.0.0.1", tmp_path)
    assert host.identity.capabilities == ("throttle",)
    host._lifecycle._service.engine = ScriptedEngine(scheduler=ScriptedScheduler())
    assert host.identity.capabilities == ("throttle", "live_scheduler")
    host._lifecycle._service.engine = ScriptedEngine(scheduler="the scheduler of vLLM 0.40 is not known")
    assert host.identity.capabilities == ("throttle",)


async def test_the_oldest_wait_counts_who_waits_at_the_gate(tmp_path: Path) -> None:
    host = host_on("127.0.0.1", tmp_path)
    assert host.snapshot().queue.oldest_wait_s is None
    host._entry.hold(30.0)

    async def unused(*_: Any) -> Any:
        raise AssertionError("it is held")

    waits = asyncio.create_task(host._entry({"type": "http", "method": "POST"}, asyncio.Event().wait, unused))
    while not host._entry.held:
        await asyncio.sleep(0)
    host._snapshots._last = None
    queue = host.snapshot().queue
    assert queue.held == 1 and queue.oldest_wait_s is not None
    waits.cancel()
    await asyncio.wait({waits})


async def test_a_prompt_that_is_too_long_for_the_engine_is_refused_at_the_gate(tmp_path: Path) -> None:
    host = host_on("127.0.0.1", tmp_path)
    host._lifecycle._service.engine = ScriptedEngine()

    async def unused(*_: Any) -> Any:
        raise AssertionError("it is refused")

    host._entry.attach(unused)
    told = (await Client(host._entry, {"prompt": list(range(2_500))}).start().answered()).told
    assert told["reason"] == "too_long" and "2500 tokens" in told["error"]["message"]


def hung(host: EngineHost, monkeypatch: pytest.MonkeyPatch, **engine: Any) -> ScriptedEngine:
    """A request runs in an engine that gives no token for minutes."""
    found = ScriptedEngine(unfinished=1, **engine)
    host._lifecycle._service.engine = found
    now = 1_000.0
    for clocked in (host._store, host._store.gauges):
        monkeypatch.setattr(clocked, "_clock", lambda: now)
    host._store.record(StepStats(0, running=1, waiting=0, kv_usage=0.1))
    host._look()
    now += 600.0
    return found


def test_a_dead_engine_is_not_called_hung(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = host_on("127.0.0.1", tmp_path)
    engine = hung(host, monkeypatch)
    host._look()
    assert [event.kind for event in host.events.after(0, 10).events] == ["engine.hung"]
    engine.is_dead = True
    host._look()
    assert len(host.events.after(0, 10).events) == 1, "nor is it said to run again"
    host._snapshots._last = None
    queue = host.snapshot().queue
    assert (queue.stalled, queue.stalled_reason, queue.stalled_text) == (False, None, None)


@dataclass
class UnderWay:
    can_cancel: bool


@pytest.mark.parametrize(("can_cancel", "count"), [(True, 1), (False, 0)])
def test_the_remedy_for_a_hung_engine_is_none_that_a_switch_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can_cancel: bool, count: int
) -> None:
    """Once the old engine hands over nothing is to run in it."""
    host = host_on("127.0.0.1", tmp_path)
    hung(host, monkeypatch)
    monkeypatch.setattr(host._lifecycle._switching, "under_way", UnderWay(can_cancel))
    host._look()
    events = host.events.after(0, 10).events
    assert len(events) == count
    assert all("restart" not in event.text and "switch --cancel" in event.text for event in events)


def test_the_snapshot_says_at_once_what_the_throttle_has_put_in_force(tmp_path: Path) -> None:
    host = host_on("127.0.0.1", tmp_path)
    assert host.snapshot().throttle.limited_by == []
    order = ThrottleSet(limits={"max_inflight": 16}, reason="KV pressure", idempotency_key="k")
    assert host.throttle.set(order, "ops") == "max_inflight none → 16: KV pressure"
    found = host.snapshot().throttle
    assert (found.max_inflight, found.limited_by) == (16, ["max_inflight"])


@dataclass
class FullGate:
    inflight: int = 20
    held: int = 0


@pytest.mark.parametrize(("auto", "cap"), [("on", 17), ("observe", None), ("off", None)])
def test_the_figures_of_every_step_reach_the_automatic_throttle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, auto: str, cap: int | None
) -> None:
    host = host_on("127.0.0.1", tmp_path, auto)
    host._lifecycle._service.engine = ScriptedEngine(unfinished=20)
    now = 1_000.0
    monkeypatch.setattr(host._pilot, "_clock", lambda: now)
    monkeypatch.setattr(host._pilot, "_gate", FullGate())
    host._pilot.look()
    for _ in range(40):
        now += 0.1
        host._lifecycle._starter._sink(StepStats(0, running=20, waiting=0, kv_usage=0.97, generation_tokens=20))
    assert host.snapshot().throttle.max_inflight == cap
    told = [event.text for event in host.events.after(0, 10).events if event.kind == "throttle.auto"]
    assert len(told) == (auto != "off")
    host._pilot.look()
    assert host.throttle.sheet().auto.gauges[0].value == 0.97, "also while it is off"
