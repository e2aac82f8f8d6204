"""vLLM's own API application: built as `vllm serve` builds it, but for what it answers once its engine is dead."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from engine_host.engine.vllm.releases import api_builders
from engine_host.gateway.unavailable import Unavailable, unavailable_body


class _ServerStub:
    """Stands where vLLM's handlers expect the uvicorn server: they set `should_exit` on it when the engine died, and
    ours must go on to say so and to start another engine."""

    should_exit = False


async def build_app(llm: Any, namespace: Any) -> Any:
    """The FastAPI application that `vllm serve` would have built, not started: its lifespan is the caller's."""
    app_module, state_module, _ = api_builders()
    tasks = await llm.get_supported_tasks()
    app = app_module.build_app(namespace, tasks, llm.model_config)
    await state_module.init_app_state(llm, app.state, namespace, tasks)
    app.state.server = _ServerStub()
    _answer_dead_engine_with_503(app)
    return app


def _answer_dead_engine_with_503(app: Any) -> None:
    """Replace vLLM's handler for a dead engine, which answers 500 and stops the server.

    vLLM's app arrives with its middleware already built, so the handler is added to the layer that looks them up.
    """
    from starlette.middleware.exceptions import ExceptionMiddleware
    from vllm.v1.engine.exceptions import EngineDeadError

    app.add_exception_handler(EngineDeadError, _engine_dead_response)
    layer = app.middleware_stack
    while layer is not None and not isinstance(layer, ExceptionMiddleware):
        layer = getattr(layer, "app", None)
    if layer is not None:
        layer.add_exception_handler(EngineDeadError, _engine_dead_response)


async def _engine_dead_response(request: Any, error: Exception) -> Any:
    """Replaces vLLM's handler, which answers 500 and stops the server."""
    from starlette.responses import Response

    why = Unavailable("dead", "The engine died while it worked on this request; it is being restarted.", 5.0)
    return Response(unavailable_body(why), 503, {"retry-after": "5"}, "application/json")


def refusal(text: str) -> Exception:
    """An error that vLLM's API layer shows to the client as 503 with this text."""
    from vllm import exceptions
    from vllm.v1.engine.exceptions import EngineDeadError

    graceful = getattr(exceptions, "GracefulHTTPError", None)
    if graceful is not None:
        return graceful(text, HTTPStatus.SERVICE_UNAVAILABLE)  # type: ignore[no-any-return]
    return EngineDeadError()  # type: ignore[no-any-return]
