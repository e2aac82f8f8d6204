"""vLLM's own API application: built as `vllm serve` builds it, but for what it answers once its engine is dead."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from engine_host.engine.vllm.releases import api_builders
from engine_host.gateway.unavailable import Unavailable, unavailable_body, unavailable_headers

_REPLACED = Unavailable("switching", "The server is changing its profile, and has no engine to ask for this now.", 10.0)
"""What is told of an engine that has ended because another one takes its place: it has not died."""


class _ServerStub:
    """Stands where vLLM's handlers expect the uvicorn server: they set `should_exit` on it when the engine died, and
    ours must go on to say so and to start another engine."""

    should_exit = False


async def build_app(llm: Any, namespace: Any, when_dead: Callable[[], Unavailable]) -> Any:
    """The FastAPI application that `vllm serve` would have built, not started: its lifespan is the caller's.

    `when_dead`: what clients are told once the engine has died.
    """
    app_module, state_module = api_builders()
    tasks = await llm.get_supported_tasks()
    app = app_module.build_app(namespace, tasks, llm.model_config)
    await state_module.init_app_state(llm, app.state, namespace, tasks)
    finish_app(app, llm, when_dead)
    return app


def finish_app(app: Any, llm: Any, when_dead: Callable[[], Unavailable]) -> None:
    """Change what vLLM's application answers once its engine is dead."""
    app.state.server = _ServerStub()
    _answer_dead_engine_with_503(app, lambda: _REPLACED if getattr(llm, "is_retired", False) else when_dead())
    _replace_health(app, llm)


def _answer_dead_engine_with_503(app: Any, when_dead: Callable[[], Unavailable]) -> None:
    """Replace vLLM's handler for a dead engine, which answers 500 and stops the server.

    vLLM's app arrives with its middleware already built, so the handler is added to the layer that looks them up.
    """
    from starlette.middleware.exceptions import ExceptionMiddleware
    from starlette.responses import Response
    from vllm.v1.engine.exceptions import EngineDeadError

    async def answer(request: Any, error: Exception) -> Any:
        why = when_dead()
        return Response(unavailable_body(why), 503, unavailable_headers(why))

    app.add_exception_handler(EngineDeadError, answer)
    layer = app.middleware_stack
    while layer is not None and not isinstance(layer, ExceptionMiddleware):
        layer = getattr(layer, "app", None)
    if layer is not None:
        layer.add_exception_handler(EngineDeadError, answer)


def _replace_health(app: Any, llm: Any) -> None:
    """vLLM's /health answers for a dead engine itself, with an empty body; ours lets the handler above do it."""
    from starlette.responses import Response
    from starlette.routing import Route

    async def health(request: Any) -> Any:
        await llm.check_health()
        return Response()

    routes = app.router.routes
    if any(getattr(route, "path", None) == "/health" for route in routes):
        routes.insert(0, Route("/health", health, methods=["GET"]))


def ending(text: str) -> Exception:
    """An error that ends one request of an engine that goes on; its client is shown this text. As 503, but by older
    releases, which pass on the text of a refused request alone, as 400."""
    error = refusal(text)
    return error if str(error) == text else ValueError(text)


def refusal(text: str) -> Exception:
    """An error that vLLM's API layer shows to the client as 503 with this text."""
    from vllm import exceptions
    from vllm.v1.engine.exceptions import EngineDeadError

    graceful = getattr(exceptions, "GracefulHTTPError", None)
    if graceful is not None:
        return graceful(text, HTTPStatus.SERVICE_UNAVAILABLE)  # type: ignore[no-any-return]
    return EngineDeadError()  # type: ignore[no-any-return]
