"""Which of vLLM's paths cost the engine something, and where in their bodies it stands how often.

An explicit list: what is not in it is never throttled, so that health checks, metrics, model lists, tokenizing and
administration answer however full the gate is. A test holds it against every route of the installed vLLM.
"""

from __future__ import annotations

from collections.abc import Mapping

from engine_host.engine.port import Scope

MULTIPART: tuple[str, ...] | None = None
"""The body is a form with a file: neither read ahead nor looked into."""

_SCORED = ("text_1", "text_2", "queries", "documents", "items", "data_1", "data_2")

INFERENCE_PATHS: Mapping[str, tuple[str, ...] | None] = {
    "/v1/completions": ("prompt",),
    "/v1/chat/completions": (),
    "/v1/chat/completions/batch": ("messages",),
    "/v1/responses": (),
    "/v1/messages": (),
    "/v1/systemone": (),
    "/cohere/v2/chat": (),
    "/inference/v1/generate": (),
    "/generative_scoring": ("items",),
    "/v1/embeddings": ("input",),
    "/v2/embed": ("texts", "inputs", "images"),
    "/pooling": ("input",),
    "/classify": ("input",),
    "/score": _SCORED,
    "/v1/score": _SCORED,
    "/rerank": ("documents",),
    "/v1/rerank": ("documents",),
    "/v2/rerank": ("documents",),
    "/invocations": ("prompt", "input", *_SCORED),
    "/v1/audio/transcriptions": MULTIPART,
    "/v1/audio/translations": MULTIPART,
}
"""POST path -> the fields of its body that hold one request each when they are lists."""

INFERENCE_SOCKETS = frozenset({"/v1/realtime"})
"""WebSockets; one counts as one request for as long as it is open."""

_ENDINGS = tuple(INFERENCE_PATHS)


def inference_path(scope: Scope) -> str | None:
    """The listed path that `scope` asks for; None for what is never throttled.

    What stands before a listed path (vLLM's `--root-path`, a proxy's prefix) makes it no other one.
    """
    path: str = scope.get("path", "")
    if scope["type"] == "http":
        if scope["method"] != "POST":
            return None
        if path in INFERENCE_PATHS:
            return path
        if path.endswith(_ENDINGS):
            return max((listed for listed in _ENDINGS if path.endswith(listed)), key=len)
        return None
    if scope["type"] == "websocket":
        return next((listed for listed in INFERENCE_SOCKETS if path.endswith(listed)), None)
    return None
