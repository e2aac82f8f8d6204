"""The adapter before it has touched vLLM."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from importlib.util import find_spec
from types import ModuleType

import httpx
import pytest

from engine_host.engine.port import EngineArguments
from engine_host.engine.vllm.adapter import VllmEngine
from engine_host.engine.vllm.app import finish_app
from engine_host.gateway.unavailable import Unavailable


def test_an_engine_stopped_before_its_start_ran_ends_nobody_elses_process() -> None:
    """A cancelled switch stops the new engine at once; the engine beside it is a child of the same host."""
    beside = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        asyncio.run(VllmEngine(EngineArguments(engine={}, server={}), lambda names: None).stop(0.0))
        assert beside.poll() is None
    finally:
        beside.kill()
        beside.wait()


class EngineDeadError(Exception):
    """As vLLM's."""


class Llm:
    is_dead = False

    async def check_health(self) -> None:
        if self.is_dead:
            raise EngineDeadError


@pytest.fixture
def no_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM's exceptions without vLLM, whose import takes seconds."""
    for name in ("vllm", "vllm.v1", "vllm.v1.engine"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    exceptions = ModuleType("vllm.v1.engine.exceptions")
    exceptions.EngineDeadError = EngineDeadError  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, exceptions.__name__, exceptions)


@pytest.mark.skipif(not find_spec("fastapi"), reason="comes with vLLM")
async def test_the_health_of_a_dead_engine_is_told_like_everything_else_of_it(no_vllm: None) -> None:
    from fastapi import FastAPI, Response

    app, llm = FastAPI(), Llm()

    @app.get("/health")
    async def vllms_own() -> Response:
        return Response(status_code=503)

    app.middleware_stack = app.build_middleware_stack()
    finish_app(app, llm, lambda: Unavailable("dead", "The engine has died.", 20.0))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://host") as client:
        assert (await client.get("/health")).status_code == 200
        llm.is_dead = True
        answer = await client.get("/health")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "20")
    assert (answer.json()["state"], answer.json()["error"]["message"]) == ("dead", "The engine has died.")
