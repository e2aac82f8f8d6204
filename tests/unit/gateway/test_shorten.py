"""The longest part of a text that is within a limit, found with few questions."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from engine_host.gateway.shorten import MOST_QUESTIONS, WORD_CHARACTERS, Cut, Side, cut_at_word, longest_within
from tests.unit.gateway.scripted_app import tokens_of

TEXTS = st.text(alphabet="ab \n\u00e9\u4e2d", max_size=400)
SIDES = st.sampled_from(["start", "end"])


class Counter:
    def __init__(self, around: int = 0) -> None:
        self.around = around
        self.questions = 0

    async def __call__(self, text: str) -> int:
        self.questions += 1
        return self.around + len(tokens_of(text))


def found(text: str, limit: int, keep: Side, counter: Counter, ratio: float) -> Cut | None:
    return asyncio.run(
        longest_within(text, limit, keep, counter, empty_tokens=counter.around, characters_per_token=ratio)
    )


@given(TEXTS, st.integers(0, 60), SIDES, st.integers(0, 9), st.floats(0.01, 100))
def test_a_cut_is_a_side_of_the_text_and_within_the_limit(
    text: str, limit: int, keep: Side, around: int, ratio: float
) -> None:
    counter = Counter(around)
    cut = found(text, limit, keep, counter, ratio)
    assert counter.questions <= MOST_QUESTIONS
    if around > limit:
        assert cut is None
        return
    assert cut is not None and cut.tokens == around + len(tokens_of(cut.text)) <= limit
    assert text.startswith(cut.text) if keep == "start" else text.endswith(cut.text)
    if around + len(tokens_of(text)) <= limit:
        assert cut.text == text or (limit - cut.tokens <= 4 and len(text) > 2 * len(cut.text))


@given(st.integers(1, 20_000), SIDES, st.floats(0.5, 20))
def test_little_of_what_is_allowed_is_left_unused(limit: int, keep: Side, ratio: float) -> None:
    text = "some words that go on " * 8000
    counter = Counter(2)
    cut = found(text, limit + 20, keep, counter, ratio)
    assert cut is not None and limit + 20 - cut.tokens <= 8 + limit // 100
    assert counter.questions <= 10


@given(TEXTS, st.integers(0, 400), SIDES)
def test_a_cut_at_a_word_is_shorter_by_less_than_a_word(text: str, length: int, keep: Side) -> None:
    kept = cut_at_word(text, length, keep)
    assert min(length, len(text)) - WORD_CHARACTERS <= len(kept) <= min(length, len(text))
    assert text.startswith(kept) if keep == "start" else text.endswith(kept)
