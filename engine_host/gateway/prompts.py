"""Where in a request its prompts stand: counted as vLLM will see them, cut, and put back.

Of a completion that is its text, or token ids, or a list of either; of a chat, the longest message of the user, with
the template, the system message and the other messages around it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from engine_host.gateway.prompt_tokens import PIECE_CHARACTERS, PromptTokens
from engine_host.gateway.shorten import Side, longest_within
from engine_host.profiles.windows import most_overlap

Request = Mapping[str, Any]
"""A decoded body. Never changed: a changed one is a copy."""


class Prompt(ABC):
    """One of a request, which becomes one request of the engine."""

    is_least = False
    """It holds images or sound as well, which are not counted."""

    @abstractmethod
    async def tokens(self) -> int: ...

    @abstractmethod
    async def cut(self, limit: int, keep: Side) -> tuple[Prompt, int] | None:
        """It with only as much of one side of its text as makes `limit` tokens, and how many it has; None where the
        rest of it alone has more."""

    @abstractmethod
    async def windows(self, limit: int, overlap: int, most: int) -> list[tuple[Prompt, int]] | int:
        """It in parts of at most `limit` tokens that overlap by `overlap` tokens of text; or about how many there would
        be, where they are more than `most`; 0: there is no room for text in them."""

    @abstractmethod
    def put(self, request: Request) -> dict[str, Any]:
        """A copy of `request` with it in the place that it came from."""


class IdsPrompt(Prompt):
    """Token ids."""

    def __init__(self, ids: list[int], index: int | None) -> None:
        self._ids = ids
        self._index = index

    async def tokens(self) -> int:
        return len(self._ids)

    async def cut(self, limit: int, keep: Side) -> tuple[Prompt, int] | None:
        if limit < 1:
            return None
        return self._with(self._ids[:limit] if keep == "start" else self._ids[-limit:])

    async def windows(self, limit: int, overlap: int, most: int) -> list[tuple[Prompt, int]] | int:
        if max(1, overlap) > most_overlap(limit):
            return 0
        step = limit - overlap
        number = 1 + -(-max(0, len(self._ids) - limit) // step)
        if number > most:
            return number
        return [self._with(self._ids[at : at + limit]) for at in range(0, number * step, step)]

    def _with(self, ids: list[int]) -> tuple[Prompt, int]:
        return IdsPrompt(ids, self._index), len(ids)

    def put(self, request: Request) -> dict[str, Any]:
        return _with_prompt(request, self._ids, self._index)


class _Worded(Prompt):
    """With a text that can be cut."""

    text: str

    def __init__(self, counter: PromptTokens) -> None:
        self._counter = counter

    @abstractmethod
    async def _count(self, text: str) -> int:
        """Tokens of the whole prompt with `text` for its own."""

    @abstractmethod
    def _with(self, text: str) -> Prompt: ...

    async def tokens(self) -> int:
        return await self._count(self.text)

    async def cut(self, limit: int, keep: Side) -> tuple[Prompt, int] | None:
        empty = await self._count("")
        ratio = await self._characters_per_token()
        found = await longest_within(
            self.text, limit, keep, self._count, empty_tokens=empty, characters_per_token=ratio
        )
        return None if found is None or not found.text else (self._with(found.text), found.tokens)

    async def windows(self, limit: int, overlap: int, most: int) -> list[tuple[Prompt, int]] | int:
        empty = await self._count("")
        if max(1, overlap) > most_overlap(limit - empty):
            return 0
        text_tokens = await self._counter.of_text(self.text, is_whole=False)
        ratio = len(self.text) / max(1, text_tokens)
        about = -(-max(1, text_tokens - overlap) // (limit - empty - overlap))
        if about > most + 1:
            return about
        windows: list[tuple[Prompt, int]] = []
        start = 0
        while True:
            rest = self.text[start:]
            window = await longest_within(
                rest, limit, "start", self._count, empty_tokens=empty, characters_per_token=ratio
            )
            if window is None or not window.text:
                return 0
            windows.append((self._with(window.text), window.tokens))
            if len(window.text) == len(rest):
                return windows if len(windows) <= most else len(windows)
            if len(windows) >= most:
                return max(about, most + 1)
            repeated = await longest_within(
                window.text, overlap, "end", self._count_inner, empty_tokens=0, characters_per_token=ratio
            )
            start += max(1, len(window.text) - (len(repeated.text) if repeated else 0))

    async def _characters_per_token(self) -> float:
        return len(self.text) / max(1, await self._counter.of_text(self.text, is_whole=False))

    async def _count_inner(self, text: str) -> int:
        return await self._counter.of_text(text, is_whole=False)


class TextPrompt(_Worded):
    """The text of a completion."""

    def __init__(self, counter: PromptTokens, text: str, index: int | None) -> None:
        super().__init__(counter)
        self.text = text
        self._index = index

    async def _count(self, text: str) -> int:
        return await self._counter.of_text(text)

    def _with(self, text: str) -> Prompt:
        return TextPrompt(self._counter, text, self._index)

    def put(self, request: Request) -> dict[str, Any]:
        return _with_prompt(request, self.text, self._index)


class ChatPrompt(_Worded):
    """The messages of a chat."""

    def __init__(self, counter: PromptTokens, messages: list[Any], place: tuple[int, int | None], text: str) -> None:
        """`place`: message, and part of its content, in which `text` stands."""
        super().__init__(counter)
        self.text = text
        self._messages = messages
        self._place = place

    async def _count(self, text: str) -> int:
        if len(text) <= PIECE_CHARACTERS:
            return await self._counter.of_chat(self._messages_with(text))
        return await self._counter.of_chat(self._messages_with("")) + await self._count_inner(text)

    def _messages_with(self, text: str) -> list[Any]:
        message_at, part_at = self._place
        message = dict(self._messages[message_at])
        if part_at is None:
            message["content"] = text
        else:
            parts = list(message["content"])
            parts[part_at] = {**parts[part_at], "text": text}
            message["content"] = parts
        return [*self._messages[:message_at], message, *self._messages[message_at + 1 :]]

    def _with(self, text: str) -> Prompt:
        return ChatPrompt(self._counter, self._messages, self._place, text)

    def put(self, request: Request) -> dict[str, Any]:
        return {**request, "messages": self._messages_with(self.text)}


class FixedPrompt(Prompt):
    """The messages of a chat in which there is nothing to be cut, or which hold more than text."""

    def __init__(self, counter: PromptTokens, messages: list[Any], *, is_least: bool) -> None:
        self._counter = counter
        self._messages = messages
        self.is_least = is_least

    async def tokens(self) -> int:
        return await self._counter.of_chat([_without_media(message) for message in self._messages])

    async def cut(self, limit: int, keep: Side) -> tuple[Prompt, int] | None:
        return None

    async def windows(self, limit: int, overlap: int, most: int) -> list[tuple[Prompt, int]] | int:
        return 0

    def put(self, request: Request) -> dict[str, Any]:
        return {**request, "messages": self._messages}


def prompts_of(path: str, request: Request, counter: PromptTokens) -> list[Prompt] | None:
    """None where they cannot be told for certain: other paths, other shapes."""
    if path == "/v1/completions":
        return _completion_prompts(request, counter)
    if path == "/v1/chat/completions":
        prompt = _chat_prompt(request.get("messages"), counter)
        return None if prompt is None else [prompt]
    return None


def _completion_prompts(request: Request, counter: PromptTokens) -> list[Prompt] | None:
    prompt = request.get("prompt")
    if request.get("suffix") is not None or request.get("prompt_embeds") is not None:
        return None
    single = _completion_prompt(prompt, None, counter)
    if single is not None:
        return [single]
    if not isinstance(prompt, list):
        return None
    several = [_completion_prompt(one, at, counter) for at, one in enumerate(prompt)]
    return [one for one in several if one is not None] if several and None not in several else None


def _completion_prompt(prompt: object, index: int | None, counter: PromptTokens) -> Prompt | None:
    if isinstance(prompt, str):
        return TextPrompt(counter, prompt, index)
    if isinstance(prompt, list) and prompt and all(type(token) is int for token in prompt):
        return IdsPrompt(prompt, index)
    return None


def _chat_prompt(messages: object, counter: PromptTokens) -> Prompt | None:
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        return None
    if any(_has_media(message) for message in messages):
        return FixedPrompt(counter, messages, is_least=True)
    texts = [
        (text, (message_at, part_at))
        for message_at, message in enumerate(messages)
        if message.get("role") == "user"
        for text, part_at in _texts_of(message)
    ]
    if not texts:
        return FixedPrompt(counter, messages, is_least=False)
    text, place = max(texts, key=lambda found: len(found[0]))
    return ChatPrompt(counter, messages, place, text)


def _texts_of(message: Mapping[str, Any]) -> list[tuple[str, int | None]]:
    content = message.get("content")
    if isinstance(content, str):
        return [(content, None)]
    if not isinstance(content, list):
        return []
    return [(part["text"], at) for at, part in enumerate(content) if _is_text(part)]


def _is_text(part: object) -> bool:
    return isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)


def _has_media(message: Mapping[str, Any]) -> bool:
    content = message.get("content")
    return isinstance(content, list) and not all(isinstance(part, str) or _is_text(part) for part in content)


def _without_media(message: Mapping[str, Any]) -> Mapping[str, Any]:
    if not _has_media(message):
        return message
    return {**message, "content": [part for part in message["content"] if isinstance(part, str) or _is_text(part)]}


def _with_prompt(request: Request, prompt: str | list[int], index: int | None) -> dict[str, Any]:
    if index is None:
        return {**request, "prompt": prompt}
    prompts = list(request["prompt"])
    prompts[index] = prompt
    return {**request, "prompt": prompts}


def words_of(value: object) -> str:
    """All text in a part of a request, for an estimate."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "\n".join(filter(None, (words_of(one) for one in value)))
    if isinstance(value, dict):
        return "\n".join(
            filter(None, (words_of(value.get(name)) for name in ("text", "content", "output", "arguments")))
        )
    return ""


def ids_in(value: object) -> int:
    """Token ids in a part of a request, however deep in lists."""
    if not isinstance(value, list):
        return 0
    return sum(1 if type(one) is int else ids_in(one) for one in value)
