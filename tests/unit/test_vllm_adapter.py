"""The adapter before it has touched vLLM."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from types import ModuleType, SimpleNamespace

import httpx
import pytest

from engine_host.engine.port import EngineArguments
from engine_host.engine.vllm import adapter
from engine_host.engine.vllm.adapter import VllmEngine
from engine_host.engine.vllm.app import ending, finish_app
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


class GracefulHTTPError(Exception):
    """As vLLM's."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)


class Llm:
    is_dead = is_retired = False

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
    public = ModuleType("vllm.exceptions")
    public.GracefulHTTPError = GracefulHTTPError  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, public.__name__, public)
    sys.modules["vllm"].exceptions = public  # type: ignore[attr-defined]


class Retiring:
    """An AsyncLLM as far as its end looks at it."""

    errored = False

    def __init__(self, **config: object) -> None:
        self.ended_with: list[Exception] = []
        self.shut_down_with: list[float | None] = []
        queue = SimpleNamespace(put=self.ended_with.append)
        state = SimpleNamespace(request_id="r", external_req_id="r", parent_req=None, lora_name=None, queue=queue)
        self.output_processor = SimpleNamespace(
            request_states={"r": state},
            external_req_ids={"r": ["r"]},
            parent_requests={},
            lora_states=SimpleNamespace(request_finished=lambda *_: None),
        )
        self.vllm_config = SimpleNamespace(parallel_config=SimpleNamespace(distributed_executor_backend="mp"), **config)

        self.engine_core = SimpleNamespace(shutdown=lambda timeout: self.cores_ended_with.append(timeout))
        self.cores_ended_with: list[float] = []
        self.output_handler = asyncio.get_running_loop().create_future()

    def shutdown(self, timeout: float | None = None) -> None:
        self.shut_down_with.append(timeout)


def engine_of(llm: Retiring) -> VllmEngine:
    engine = VllmEngine(EngineArguments(engine={}, server={}), lambda names: None)
    engine._llm = llm
    return engine


async def test_requests_that_an_engine_is_stopped_under_end_with_an_error_not_as_if_finished(no_vllm: None) -> None:
    llm = Retiring()
    await engine_of(llm).stop(10.0)
    (error,) = llm.ended_with
    assert "stopped its engine before this answer was finished" in str(error)
    assert not llm.output_processor.request_states


@pytest.mark.parametrize(
    ("config", "timeout_s"),
    [({}, 1.0), ({"kv_transfer_config": None}, 1.0), ({"kv_transfer_config": object()}, 10.0)],
)
async def test_only_an_engine_that_keeps_something_is_waited_for(
    no_vllm: None, config: dict[str, object], timeout_s: float
) -> None:
    llm = Retiring(**config)
    await engine_of(llm).stop(10.0)
    assert llm.shut_down_with == [timeout_s]


async def test_an_app_that_outlives_its_engine_keeps_what_makes_prompts_into_tokens(no_vllm: None) -> None:
    llm = Retiring()
    engine = engine_of(llm)
    await engine.stop(1.0, keep_app=True)
    assert (llm.cores_ended_with, llm.shut_down_with) == ([1.0], []) and llm.output_handler.cancelled()
    await engine.close_app()
    assert llm.shut_down_with == [None]


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


async def test_an_engine_that_another_one_replaces_is_not_told_as_dead(no_vllm: None) -> None:
    """A switch keeps its app for what needs no engine; a few reads of vLLM's need one."""
    from fastapi import FastAPI

    app, llm = FastAPI(), Llm()

    @app.get("/is_sleeping")
    async def is_sleeping() -> None:
        raise EngineDeadError

    app.middleware_stack = app.build_middleware_stack()
    finish_app(app, llm, lambda: Unavailable("dead", "The engine has died.", 20.0))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://host") as client:
        assert (await client.get("/is_sleeping")).json()["state"] == "dead"
        llm.is_retired = True
        answer = await client.get("/is_sleeping")
    assert (answer.status_code, answer.json()["state"]) == (503, "switching")
    assert "changing its profile" in answer.json()["error"]["message"]


async def test_a_client_whose_request_is_ended_reads_why_and_503_from_a_release_without_an_error_for_it(
    no_vllm: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fastapi import FastAPI
    from fastapi.responses import JSONResponse

    monkeypatch.delattr(sys.modules["vllm"].exceptions, "GracefulHTTPError")  # type: ignore[attr-defined]
    app = FastAPI()

    @app.get("/ended")
    async def ended() -> None:
        raise ending("An operator ended this request.")

    @app.get("/refused")
    async def refused() -> None:
        raise ValueError("The prompt is empty.")

    @app.exception_handler(ValueError)
    async def bad_request(request: object, error: ValueError) -> JSONResponse:
        return JSONResponse({}, 400)

    app.middleware_stack = app.build_middleware_stack()
    finish_app(app, Llm(), lambda: Unavailable("dead", "The engine has died."))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://host") as client:
        answer = await client.get("/ended")
        assert (await client.get("/refused")).status_code == 400
    assert answer.status_code == 503
    assert answer.json()["error"] == {
        "message": "An operator ended this request.", "type": "Service Unavailable", "param": None, "code": 503
    }  # fmt: skip


async def test_a_build_that_hangs_in_its_thread_holds_up_neither_a_stop_nor_a_deadline(
    no_vllm: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A download, a file server that does not answer. What comes of it later is ended."""
    llm, is_building, answers = Retiring(), threading.Event(), threading.Event()
    monkeypatch.setattr(adapter, "_ABANDON_S", 0.2)
    monkeypatch.setattr(adapter, "import_vllm", lambda: None)

    def hangs(*_: object) -> tuple[None, Retiring]:
        is_building.set()
        answers.wait(100)
        return None, llm

    monkeypatch.setattr(adapter, "build", hangs)
    engine = VllmEngine(EngineArguments(engine={}, server={}), lambda names: None)
    start = asyncio.create_task(engine.start(lambda step: None))
    await asyncio.to_thread(is_building.wait, 10)
    start.cancel()
    async with asyncio.timeout(30):
        await asyncio.wait({start})
        await engine.stop(0.0)
        assert not llm.shut_down_with
        answers.set()
        while not llm.shut_down_with:
            await asyncio.sleep(0.01)
