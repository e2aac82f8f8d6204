"""What becomes of a prompt before the gate admits it: counted when need be, cut, run in windows, refused.

What is refused here vLLM would refuse with fewer words, or keep in its queue for ever. What cannot be too long for its
bytes is not looked at. What asks for vLLM's own truncation, or is too odd to be read, is left to vLLM.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec

from engine_host.engine.port import AsgiApp, EngineFacts, Receive, Scope, Send
from engine_host.gateway.asked import Asked
from engine_host.gateway.prompt_tokens import PromptTokens, UncountableError, is_at_most
from engine_host.gateway.prompts import Prompt, Request, ids_in, prompts_of, words_of
from engine_host.gateway.refusals import Refusal
from engine_host.gateway.room import Room, max_tokens_of, room_of
from engine_host.gateway.segments import segmented
from engine_host.gateway.unsegmentable import why_not_segmented
from engine_host.profiles.throttle_table import Throttle

TRUNCATED: Final = b"x-vllm-console-truncated"
"""Response header: the tokens that were cut off, and the end of the text that was kept."""
SEGMENTED: Final = b"x-vllm-console-segmented"
"""Response header: the windows in which the text was run, and how many tokens of it two of them share."""
SHORTENED: Final = b"x-vllm-console-max-tokens"
"""Response header: what `max_tokens` was brought down to, since prompt and answer would not fit in the KV cache."""

Header = tuple[bytes, bytes]


@dataclass(frozen=True, slots=True)
class _Case:
    """One request, read and counted."""

    asked: Asked
    room: Room
    request: Request
    prompts: Sequence[Prompt]
    counts: Sequence[int]
    max_tokens: int | None
    is_more: bool
    """Than was counted, and too large already."""

    @property
    def longest(self) -> int:
        return max(self.counts)


class Preparation:
    """Decides it, by the profile's `[throttle]` table and what the engine that serves can take."""

    def __init__(self, facts: Callable[[], EngineFacts | None], table: Callable[[], Throttle]) -> None:
        """`facts`: of the engine that serves now; None while none does. `table`: of its profile."""
        self._facts = facts
        self._table = table

    async def prepare(self, app: AsgiApp, asked: Asked) -> Asked | Refusal:
        """As `asked.Prepare`. Takes as long as vLLM takes to tokenize the prompt, and may be cancelled."""
        facts = self._facts()
        room = room_of(facts) if facts is not None else None
        if room is None or not asked.choices or not asked.body:
            return asked
        if not asked.wants_prompt_tokens and not _may_be_too_long(room, asked):
            return asked
        request = _decoded(asked.body)
        if request is None:
            return asked
        counter = PromptTokens(app, asked.scope, request, room.cache)
        try:
            prompts = prompts_of(asked.path, request, counter)
            if prompts is None:
                return await _estimated(asked, room, request, counter)
            counts = [await prompt.tokens() for prompt in prompts]
            max_tokens = max_tokens_of(asked.path, request)
            case = _Case(asked, room, request, prompts, counts, max_tokens, counter.has_stopped)
            return await self._decide(case)
        except (UncountableError, RecursionError):  # the latter of what can just be read, but not be written again
            return asked

    async def _decide(self, case: _Case) -> Asked | Refusal:
        room = case.room
        if (kept := case.request.get("truncate_prompt_tokens")) is not None:
            return _left_to_vllm(case, kept)
        if room.cache is not None and case.longest > room.cache:
            return _too_large(case.longest, room.cache, _field(case), is_more=case.is_more)
        if case.longest <= room.longest_prompt(case.max_tokens):
            asked = replace(case.asked, prompt_tokens=sum(case.counts))
            return _shortened(case, asked, case.request, case.counts, [])
        overlong = self._table().overlong
        if overlong == "truncate":
            return await self._truncated(case)
        if overlong == "segment":
            return await self._segmented(case)
        return _too_long(case)

    async def _truncated(self, case: _Case) -> Asked | Refusal:
        keep = self._table().truncate_keep
        limit = case.room.cut_prompt(case.max_tokens)
        request: Request = case.request
        counts = list(case.counts)
        for at, prompt in enumerate(case.prompts):
            if counts[at] <= case.room.longest_prompt(case.max_tokens):
                continue
            found = await prompt.cut(limit, keep)
            if found is None:
                return _too_long(case, f"It cannot be truncated to {max(0, limit)}: {_why_not_cut(prompt)}.")
            cut, counts[at] = found
            request = cut.put(request)
        missing = sum(case.counts) - sum(counts)
        headers = [(TRUNCATED, f"cut={missing}; kept={keep}".encode())]
        asked = replace(case.asked, prompt_tokens=sum(counts), is_truncated=True, body=msgspec.json.encode(request))
        return _shortened(case, asked, request, counts, headers)

    async def _segmented(self, case: _Case) -> Asked | Refusal:
        reason = why_not_segmented(case.asked.path, case.request, case.prompts)
        if reason is not None:
            return _too_long(case, f"It cannot be answered in segments: {reason}.")
        table = self._table()
        overlap, most = table.segment_overlap_tokens, table.segment_max_windows
        limit = case.room.cut_prompt(case.max_tokens)
        windows = await case.prompts[0].windows(limit, overlap, most)
        if windows == 0:
            return _too_long(
                case,
                f"It cannot be answered in segments: windows of {max(0, limit)} tokens leave no room for text that "
                f"overlaps by {overlap}.",
            )
        if isinstance(windows, int):
            return _too_long(
                case, f"It would take about {windows} segments, and segment_max_windows of the profile is {most}."
            )
        requests = []
        for prompt, tokens in windows:
            request = prompt.put(case.request)
            allowed = _answer_within_cache(case.room, case.max_tokens, [tokens])
            requests.append(request if allowed is None else _with_max_tokens(case.asked.path, request, allowed))
        headers = [(SEGMENTED, f"windows={len(windows)}; overlap={overlap}".encode())]
        return replace(
            case.asked,
            prompt_tokens=sum(tokens for _, tokens in windows),
            segments=len(windows),
            through=lambda app: segmented(app, requests, headers),
        )


def _left_to_vllm(case: _Case, kept: object) -> Asked | Refusal:
    """A request that asks for vLLM's own truncation, to `kept` tokens; -1: to the context."""
    most = kept if isinstance(kept, int) and kept >= 0 else case.room.context
    counts = [min(count, most) for count in case.counts]
    if case.room.cache is not None and max(counts) > case.room.cache:
        return _too_large(max(counts), case.room.cache, _field(case))
    return replace(case.asked, prompt_tokens=sum(counts))


def _may_be_too_long(room: Room, asked: Asked) -> bool:
    limit = room.context - 1 if room.cache is None else min(room.context - 1, room.cache)
    if room.reserves_answer or room.is_cache_short:
        try:
            answer = max_tokens_of(asked.path, msgspec.to_builtins(_ANSWER.decode(asked.body)))
        except (msgspec.DecodeError, RecursionError):
            return True
        if room.reserves_answer:
            limit = min(limit, room.longest_prompt(answer))
        if room.is_cache_short and room.cache is not None:
            limit = min(limit, room.cache - (room.context if answer is None else answer))
    return not is_at_most(limit, asked.body)


class _Answer(msgspec.Struct):
    """What a body says about the length of its answer."""

    max_tokens: float | str | msgspec.UnsetType | None = msgspec.UNSET
    max_completion_tokens: float | str | msgspec.UnsetType | None = msgspec.UNSET


_ANSWER = msgspec.json.Decoder(_Answer)


def _decoded(body: bytes) -> dict[str, Any] | None:
    try:
        decoded = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return decoded if isinstance(decoded, dict) else None


async def _estimated(asked: Asked, room: Room, request: Request, counter: PromptTokens) -> Asked | Refusal:
    """Of paths whose prompts vLLM puts together by rules of their own: all their text, for the limits on tokens. What
    is too long for the context vLLM refuses itself, but not what is too long for the cache alone."""
    texts = filter(None, (words_of(request.get(name)) for name in _TEXT_FIELDS))
    tokens = sum(ids_in(request.get(name)) for name in _ID_FIELDS) + await counter.of_text("\n".join(texts))
    if room.is_cache_short and room.cache is not None and tokens > room.cache and asked.choices == 1:
        return _too_large(tokens, room.cache, None)
    return replace(asked, prompt_tokens=tokens)


_TEXT_FIELDS = ("instructions", "system", "input", "prompt", "messages", "texts", "query", "documents")
_ID_FIELDS = ("token_ids", "input", "prompt")


def _shortened(case: _Case, asked: Asked, request: Request, counts: Sequence[int], headers: list[Header]) -> Asked:
    """With an answer short enough for the KV cache: without, vLLM would preempt the request, alone, for ever."""
    allowed = _answer_within_cache(case.room, case.max_tokens, counts)
    if allowed is not None and not any(prompt.is_least for prompt in case.prompts):
        headers.append((SHORTENED, str(allowed).encode()))
        asked = replace(asked, body=msgspec.json.encode(_with_max_tokens(asked.path, request, allowed)))
    return replace(asked, through=_rewritten(len(asked.body), headers)) if headers else asked


def _answer_within_cache(room: Room, max_tokens: int | None, counts: Sequence[int]) -> int | None:
    """Tokens that an answer may have; None where it has room enough. The last one needs no place of its own."""
    if not room.is_cache_short or room.cache is None:
        return None
    allowed = max(1, room.cache - max(counts) + 1)
    most = room.context - min(counts)
    return allowed if min(most, most if max_tokens is None else max_tokens) > allowed else None


def _with_max_tokens(path: str, request: Request, allowed: int) -> dict[str, Any]:
    is_newer_name = path != "/v1/completions" and request.get("max_completion_tokens") is not None
    return {**request, "max_completion_tokens" if is_newer_name else "max_tokens": allowed}


def _rewritten(length: int, headers: Sequence[Header]) -> Callable[[AsgiApp], AsgiApp]:
    """The app, told of a body of another `length` than the client's, and with `headers` in its response."""

    def through(app: AsgiApp) -> AsgiApp:
        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            async def tell(message: Any) -> None:
                if message["type"] == "http.response.start":
                    message = {**message, "headers": [*message.get("headers", ()), *headers]}
                await send(message)

            kept = [header for header in scope["headers"] if header[0] not in _LENGTH_HEADERS]
            told = [*kept, (b"content-length", str(length).encode())]
            await app({**scope, "headers": told}, receive, tell)

        return answer

    return through


_LENGTH_HEADERS = (b"content-length", b"transfer-encoding")


def _too_long(case: _Case, why: str = "") -> Refusal:
    limit = case.room.longest_prompt(case.max_tokens)
    asked_for = case.room.context - limit
    room_for = f"the {asked_for} tokens that max_tokens asks for" if asked_for > 1 else "an answer"
    least = "at least " if any(prompt.is_least for prompt in case.prompts) else ""
    message = (
        f"This model's maximum context length is {case.room.context} tokens. The prompt has {least}{case.longest} "
        f"tokens; with room for {room_for} it may have {limit}. {why or 'Shorten it.'}"
    )
    return _refusal("too_long", message, _field(case))


def _too_large(tokens: int, cache: int, field: str | None, *, is_more: bool = False) -> Refusal:
    least = "more than " if is_more else ""
    message = (
        f"The prompt has {least}{tokens} tokens, and the KV cache of this engine holds {cache} for one request: it "
        "could never be scheduled. Shorten it."
    )
    return _refusal("too_large", message, field)


def _refusal(reason: str, message: str, field: str | None) -> Refusal:
    return Refusal(
        reason, message, status=400, error_type="invalid_request_error", param=field, code="context_length_exceeded"
    )


def _field(case: _Case) -> str:
    return "prompt" if case.asked.path == "/v1/completions" else "messages"


def _why_not_cut(prompt: Prompt) -> str:
    if prompt.is_least:
        return "it holds more than text"
    return "max_tokens and what stands around its text leave no room for any of it"
