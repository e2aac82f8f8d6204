"""Every route of the installed vLLM is throttled or let through on purpose, and none comes by unnoticed."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from engine_host.gateway.inference_paths import INFERENCE_PATHS, INFERENCE_SOCKETS, inference_path

NEVER_THROTTLED = {
    # asked by probes, balancers, clients that look around
    "/health", "/ping", "/load", "/version", "/metrics", "/v1/models", "/kv_event_sources", "/server_info",
    "/ready", "/readyz", "/openapi.json", "/docs", "/docs/oauth2-redirect", "/redoc", "/static",
    # tokenizing and templates, without the engine
    "/tokenize", "/detokenize", "/tokenizer_info", "/v1/messages/count_tokens",
    "/v1/chat/completions/render", "/v1/completions/render", "/v1/messages/render", "/v1/responses/render",
    "/cohere/v2/chat/render", "/v1/chat/completions/derender", "/v1/completions/derender",
    # ends or reads what is under way
    "/abort_requests", "/inference/v1/abort_requests", "/v1/responses/{response_id}",
    "/v1/responses/{response_id}/cancel",
    # administration
    "/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/start_profile", "/stop_profile", "/reset_prefix_cache",
    "/reset_mm_cache", "/reset_encoder_cache", "/collective_rpc", "/sleep", "/wake_up", "/is_sleeping",
    "/release_kv_cache_memory", "/scale_elastic_ep", "/is_scaling_elastic_ep", "/fault_tolerance/apply",
    "/fault_tolerance/status", "/pause", "/resume", "/is_paused", "/init_weight_transfer_engine",
    "/shutdown_weight_transfer_engine", "/start_weight_update", "/start_draft_weight_update", "/update_weights",
    "/finish_weight_update", "/update_weight_version", "/weight_info", "/weight_checker", "/get_world_size",
}  # fmt: skip
"""Of every vLLM that is supported: the installed one has some of them."""

_ROUTE = re.compile(
    r"""(?:@\w*(?:router|app)\.(?:get|post|put|delete|patch|head|websocket|api_route)|\.add_api_route|\.add_route
        |\.add_(?:api_)?websocket_route|\.mount)\(\s*["'](/[^"']*)["']""",
    re.VERBOSE,
)


def written_routes() -> set[str]:
    """Of the installed vLLM, from its source: which of them an app has depends on model, arguments and environment."""
    found = importlib.util.find_spec("vllm")
    if found is None or found.origin is None:
        pytest.skip("vLLM is not installed")
    files = (Path(found.origin).parent / "entrypoints").rglob("*.py")
    return {path for file in files for path in _ROUTE.findall(file.read_text())}


def test_every_route_that_vllm_has_is_classified() -> None:
    routes = written_routes()
    assert len(routes) > 50
    known = NEVER_THROTTLED | set(INFERENCE_PATHS) | INFERENCE_SOCKETS
    assert not routes - known, "neither throttled nor named as never throttled"
    assert not set(INFERENCE_PATHS) - routes, "vLLM has none of these"
    assert routes >= INFERENCE_SOCKETS


def http(path: str, method: str = "POST") -> dict[str, str]:
    return {"type": "http", "method": method, "path": path}


def test_what_is_cheap_is_never_throttled_by_any_method_behind_any_prefix() -> None:
    for path in NEVER_THROTTLED:
        for method in ("GET", "POST", "DELETE"):
            assert inference_path(http(path, method)) is None
            assert inference_path(http("/prefix" + path, method)) is None


def test_inference_is_throttled_behind_any_prefix_and_only_as_a_post() -> None:
    for path in INFERENCE_PATHS:
        assert inference_path(http(path)) == inference_path(http("/prefix" + path)) == path
        assert inference_path(http(path, "GET")) is None
        assert inference_path(http(path, "OPTIONS")) is None


def test_a_websocket_for_inference_is_throttled_and_another_is_not() -> None:
    assert inference_path({"type": "websocket", "path": "/v1/realtime"}) == "/v1/realtime"
    assert inference_path({"type": "websocket", "path": "/elsewhere"}) is None
    assert inference_path({"type": "lifespan"}) is None
