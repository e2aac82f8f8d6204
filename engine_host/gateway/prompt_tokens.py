"""How many tokens a prompt has: at most, from its bytes alone; exactly, by vLLM's own tokenizer.

vLLM's app is asked through its `/tokenize`, in this process, with the headers of the request that it is about:
adapters, chat templates and middleware do what they will do with the request itself, and vLLM's own threads tokenize.
Nothing of vLLM is imported or patched.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any, Final

import msgspec

from engine_host.engine.port import AsgiApp, Scope

NORMALIZED_GROWTH: Final = 11
"""Bytes that Unicode normalization (NFKC, which some tokenizers do first) makes at most of a byte of non-ASCII text."""

TEMPLATE_TOKENS: Final = 2048
"""Left for what a chat template says by itself: default system prompts of known models have up to about a thousand."""

MESSAGE_TOKENS: Final = 64
"""Left for what a chat template puts around one message."""

TOOLS_GROWTH: Final = 4
"""Templates print the definitions of tools with indentation, and some print them twice."""

PIECE_CHARACTERS: Final = 262_144
"""Longer texts are counted in pieces: other requests get their turn in vLLM's one tokenizing thread, and the answer,
which lists every token, does not keep the event loop. The count is then right to a token or two a piece."""


class UncountableError(Exception):
    """vLLM's app would not tokenize it; what is wrong with the request it will say itself."""


_MOST_GROWTH: Final = NORMALIZED_GROWTH + MESSAGE_TOKENS // 8
"""Of any body: a message takes eight bytes at least, so that most need not be searched."""


def is_at_most(tokens: int, body: bytes) -> bool:
    """Whether the prompts in `body` cannot have more together, whatever the tokenizer."""
    return len(body) * _MOST_GROWTH + TEMPLATE_TOKENS <= tokens or most_tokens(body) <= tokens


def most_tokens(body: bytes) -> int:
    """That the prompts in `body` can have together, from what costs no decoding. Tokenizers that fall back on bytes
    give a byte one token at most, others a character; a token id takes two bytes. What images and sound add is not
    counted."""
    # One byte is searched for at a tenth of the time that two take.
    is_plain = body.isascii() and (b"\\" not in body or b"\\u" not in body)
    growth = 1 if is_plain else NORMALIZED_GROWTH
    if b'"tools"' in body:
        growth = max(growth, TOOLS_GROWTH)
    return len(body) * growth + TEMPLATE_TOKENS + MESSAGE_TOKENS * body.count(b'"role"')


class _Counted(msgspec.Struct):
    count: int


_COUNTED = msgspec.json.Decoder(_Counted)


class PromptTokens:
    """Counts for one request. Every method may raise `UncountableError`."""

    def __init__(self, app: AsgiApp, scope: Scope, request: Mapping[str, Any], enough: int | None) -> None:
        """`request`: its decoded body. `enough`: of more tokens it does not matter how many they are, so a very long
        text is not counted to its end."""
        self._app = app
        self._scope = scope
        self._request = request
        self._enough = enough
        self.has_stopped = False
        """A text has more tokens than were counted."""

    async def of_text(self, text: str, *, is_whole: bool = True) -> int:
        """Of a completion's prompt; not `is_whole`: of a part of a prompt, at which no special tokens are put."""
        specials = is_whole and bool(self._request.get("add_special_tokens", True))
        total = 0
        for start in range(0, max(1, len(text)), PIECE_CHARACTERS):
            piece = text[start : start + PIECE_CHARACTERS]
            total += await self._ask({"prompt": piece, "add_special_tokens": specials and not start})
            if self._enough is not None and total > self._enough and start + PIECE_CHARACTERS < len(text):
                self.has_stopped = True
                break
        return total

    async def of_chat(self, messages: Sequence[Any]) -> int:
        """Of the request with these messages instead of its own."""
        request = self._request
        asked = {name: request[name] for name in _TEMPLATE_FIELDS if request.get(name) is not None}
        named = dict(request.get("chat_template_kwargs") or {})
        if request.get("documents") is not None:
            named["documents"] = request["documents"]
        if (effort := request.get("reasoning_effort")) is not None:
            named.setdefault("enable_thinking", effort != "none")
            named["reasoning_effort"] = effort
        if named:
            asked["chat_template_kwargs"] = named
        return await self._ask({**asked, "messages": messages})

    async def _ask(self, question: dict[str, Any]) -> int:
        if (model := self._request.get("model")) is not None:
            question["model"] = model
        status, answer = await _post(self._app, self._scope, "/tokenize", msgspec.json.encode(question))
        if status != 200:
            raise UncountableError(f"/tokenize answered {status}")
        try:
            return _COUNTED.decode(answer).count
        except msgspec.DecodeError as e:
            raise UncountableError("/tokenize answered without a count") from e


_TEMPLATE_FIELDS = (
    "add_generation_prompt",
    "continue_final_message",
    "add_special_tokens",
    "chat_template",
    "mm_processor_kwargs",
    "tools",
)
"""Of a chat request, what `/tokenize` takes under the same name."""


async def _post(app: AsgiApp, scope: Scope, path: str, body: bytes) -> tuple[int, bytes]:
    """Ask `app` as the client of `scope` would; returns status and body."""
    length = str(len(body)).encode()
    kept = [(name, value) for name, value in scope.get("headers", ()) if name not in _BODY_HEADERS]
    headers = [*kept, (b"content-type", b"application/json"), (b"content-length", length)]
    root = scope.get("root_path", "")
    asked: Scope = {
        **{name: scope[name] for name in ("asgi", "http_version", "scheme", "server", "client") if name in scope},
        "type": "http",
        "method": "POST",
        "path": root + path,
        "raw_path": (root + path).encode(),
        "root_path": root,
        "query_string": b"",
        "headers": headers,
    }
    unread = [body]
    is_over = asyncio.Event()
    status = 500
    parts: list[bytes] = []

    async def receive() -> MutableMapping[str, Any]:
        if unread:
            return {"type": "http.request", "body": unread.pop(), "more_body": False}
        # vLLM waits here for a client that hangs up, in a task that it leaves behind when it is cancelled itself.
        await is_over.wait()
        return {"type": "http.disconnect"}

    async def send(message: MutableMapping[str, Any]) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
        elif message["type"] == "http.response.body":
            parts.append(message.get("body", b""))

    try:
        await app(asked, receive, send)
    except Exception as e:
        raise UncountableError(f"{path} failed: {e}") from e
    finally:
        is_over.set()
    return status, b"".join(parts)


_BODY_HEADERS = frozenset(
    {
        b"content-type",
        b"content-length",
        b"content-encoding",
        b"transfer-encoding",
        b"accept",
        b"accept-encoding",
        b"expect",
    }
)
"""Of the request's own headers, those that are about its body and its answer."""
