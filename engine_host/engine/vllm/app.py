"""vLLM's own API application: built as `vllm serve` builds it, but for what it answers once its engine is dead, and for
how it tells clients whose requests are ended."""

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
    """Change what vLLM's application answers once its engine is dead, and to requests that we end."""
    app.state.server = _ServerStub()
    _answer_dead_engine_with_503(app, lambda: _REPLACED if getattr(llm, "is_retired", False) else when_dead())
    _answer_ended_requests_with_503(app)
    _replace_health(app, llm)
    _tell_messages_clients(app)


def _answer_dead_engine_with_503(app: Any, when_dead: Callable[[], Unavailable]) -> None:
    """Replace vLLM's handler for a dead engine, which answers 500 and stops the server."""
    from starlette.responses import Response
    from vllm.v1.engine.exceptions import EngineDeadError

    async def answer(request: Any, error: Exception) -> Any:
        why = when_dead()
        return Response(unavailable_body(why), 503, unavailable_headers(why))

    _add_handler(app, EngineDeadError, answer)


def _answer_ended_requests_with_503(app: Any) -> None:
    """As newer releases answer their own error for it; these would take it for a fault of the client's."""
    from starlette.responses import JSONResponse

    async def answer(request: Any, error: Exception) -> Any:
        status = EndedError.http_status
        body = {"message": str(error), "type": status.phrase, "param": None, "code": status.value}
        return JSONResponse({"error": body}, status.value)

    _add_handler(app, EndedError, answer)


def _add_handler(app: Any, kind: type[Exception], answer: Callable[[Any, Exception], Any]) -> None:
    """vLLM's app arrives with its middleware already built, so it is added to the layer that looks handlers up."""
    from starlette.middleware.exceptions import ExceptionMiddleware

    app.add_exception_handler(kind, answer)
    layer = app.middleware_stack
    while layer is not None and not isinstance(layer, ExceptionMiddleware):
        layer = getattr(layer, "app", None)
    if layer is not None:
        layer.add_exception_handler(kind, answer)


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


def _tell_messages_clients(app: Any) -> None:
    """Let a stream of the Messages API end with the words of an error that is meant for its client.

    It is made from a stream of chat completions, and takes an error told in that for a broken piece of the answer, but
    tells one that is raised there in its own form. What tells of our insides stays as it is: see
    `gateway.failing_streams`.
    """
    serving = getattr(app.state, "anthropic_serving_messages", None)
    if serving is None:
        return
    tell = serving.create_streaming_error_response

    def told(error: Any, *arguments: Any, **named: Any) -> Any:
        if hasattr(error, "http_status"):
            raise error
        return tell(error, *arguments, **named)

    serving.create_streaming_error_response = told


class EndedError(ValueError):
    """Ends a request in releases that have no error of their own for it. Of what ends one, they pass on to whoever
    answers the client as it is only a `ValueError`."""

    http_status = HTTPStatus.SERVICE_UNAVAILABLE


def ending(text: str) -> Exception:
    """An error that ends one request of an engine that goes on; its client is shown this text, as 503. In a stream,
    which has begun with 200, older releases call it 400."""
    error = refusal(text)
    return error if str(error) == text else EndedError(text)


def refusal(text: str) -> Exception:
    """An error that vLLM's API layer shows to the client as 503 with this text."""
    from vllm import exceptions
    from vllm.v1.engine.exceptions import EngineDeadError

    graceful = getattr(exceptions, "GracefulHTTPError", None)
    if graceful is not None:
        return graceful(text, HTTPStatus.SERVICE_UNAVAILABLE)  # type: ignore[no-any-return]
    return EngineDeadError()  # type: ignore[no-any-return]
