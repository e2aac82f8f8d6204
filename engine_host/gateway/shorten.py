"""Of a text, the longest beginning or end that has no more tokens than it may.

How many tokens a text has only the tokenizer knows, and what it makes of a cut text it tells only when it is asked. The
cut is searched for: tokens grow nearly evenly with characters, so three or four questions are enough.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, Literal, NamedTuple

Side = Literal["start", "end"]
Count = Callable[[str], Awaitable[int]]

MOST_QUESTIONS: Final = 14
"""After them the best cut so far is good enough."""

CLOSE_ENOUGH: Final = 256
"""A cut that leaves no more than this part of the allowed tokens, and a word, unused is not bettered."""

A_WORD: Final = 4

WORD_CHARACTERS: Final = 32
"""A cut is moved by at most this many characters so as not to go through a word."""


class Cut(NamedTuple):
    text: str
    tokens: int
    """As counted, with whatever the count puts around the text."""


def cut_at_word(text: str, length: int, keep: Side) -> str:
    """`length` characters of one side of `text`, or a few fewer, so that no word is cut if its end is near."""
    if length >= len(text):
        return text
    if keep == "start":
        kept = text[:length]
        if text[length].isspace():
            return kept
        reach = kept[-WORD_CHARACTERS:]
        word = len(reach) - max(reach.rfind(" "), reach.rfind("\n")) - 1
        return kept[: length - word] if word < len(reach) else kept
    kept = text[len(text) - length :]
    if not length or text[-length - 1].isspace():
        return kept
    reach = kept[:WORD_CHARACTERS]
    gaps = [at for at in (reach.find(" "), reach.find("\n")) if at >= 0]
    return kept[min(gaps) + 1 :] if gaps else kept


async def longest_within(
    text: str, limit: int, keep: Side, count: Count, *, empty_tokens: int, characters_per_token: float
) -> Cut | None:
    """None when not even the empty text, which `count` gives `empty_tokens`, is within `limit`."""
    if empty_tokens > limit:
        return None
    best = Cut("", empty_tokens)
    fits, fits_tokens = 0, empty_tokens
    over, over_tokens = len(text) + 1, empty_tokens + (len(text) + 1) / characters_per_token
    is_all_asked = False
    for asked in range(MOST_QUESTIONS):
        share = (limit - fits_tokens) / max(1e-9, over_tokens - fits_tokens)
        length = fits + int((over - fits) * (share if asked % 4 < 3 else 0.5))
        length = over - 1 if is_all_asked else min(max(length, fits + 1), over - 1)
        is_all_asked = False
        if length <= fits:
            break
        kept = cut_at_word(text, length, keep)
        tokens = await count(kept)
        if tokens <= limit:
            fits, fits_tokens = length, tokens
            if len(kept) >= len(best.text):
                best = Cut(kept, tokens)
            if length == len(text):
                break
            if limit - tokens <= limit // CLOSE_ENOUGH + A_WORD:
                if over <= len(text) or len(text) > 2 * length:
                    break
                is_all_asked = True  # what is left is little, and may fit as well
        else:
            over, over_tokens = length, tokens
    return best
