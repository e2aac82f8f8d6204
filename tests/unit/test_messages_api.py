"""vLLM's own Messages API, as far as it tells a client that its answer is ended."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from engine_host.engine.vllm import app as vllms_app
from engine_host.engine.vllm.app import ending, refusal

WORDS = "An operator ended this request."


@pytest.fixture(scope="module")
def api() -> Any:
    """vLLM's class, without an engine."""
    return pytest.importorskip("vllm.entrypoints.anthropic.serving").AnthropicServingMessages


async def last_event(api: Any, error: Exception) -> tuple[str, dict[str, Any]]:
    """Of a stream whose engine gives up this request before its first token."""
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

    async def fails() -> AsyncIterator[Any]:
        raise error
        yield

    serving = object.__new__(api)
    serving.parser_cls, serving.enable_force_include_usage = None, False
    vllms_app._tell_messages_clients(SimpleNamespace(state=SimpleNamespace(anthropic_serving_messages=serving)))
    request = ChatCompletionRequest(messages=[{"role": "user", "content": "Hi"}], stream=True)
    chat = serving.chat_completion_stream_generator(request, fails(), "chatcmpl-1", "model", [], None, None)
    *_, last = [event async for event in serving.message_stream_converter(chat)]
    kind, data = last.removesuffix("\n\n").split("\n")
    return kind, json.loads(data.removeprefix("data: "))


@pytest.mark.parametrize("make", [ending, refusal])
async def test_a_client_of_a_stream_reads_why_its_request_was_ended(api: Any, make: Any) -> None:
    from vllm import exceptions

    if make is refusal and not hasattr(exceptions, "GracefulHTTPError"):
        pytest.skip("this release has no such error with a text")
    kind, event = await last_event(api, make(WORDS))
    assert (kind, event["type"], event["error"]["message"]) == ("event: error", "error", WORDS)


async def test_what_tells_of_our_insides_does_not_reach_the_client(api: Any) -> None:
    _, event = await last_event(api, KeyError("a secret of the host"))
    assert "ChatCompletionStreamResponse" in event["error"]["message"], "the mark by which `failing_streams` knows it"


async def test_an_app_without_the_messages_api_is_left_alone() -> None:
    vllms_app._tell_messages_clients(SimpleNamespace(state=SimpleNamespace(anthropic_serving_messages=None)))
