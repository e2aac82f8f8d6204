"""Facts and remedies as they are told on a page."""

from __future__ import annotations

import pytest

from console.sentences import in_sentences


@pytest.mark.parametrize(
    ("fact", "remedy", "said"),
    [
        (
            "max_inflight is 99 (set by root); this call expected 1",
            "look at it again, then decide anew: vllm-console throttle show",
            "max_inflight is 99 (set by root); this call expected 1. Look at it again, then decide anew.",
        ),
        ('no limit "x"', 'did you mean "y"?', 'no limit "x". Did you mean "y"?'),
        ("no answer.", "See: vllm-console status; vllm-console events", "no answer. See."),
        ("it is gone", "vllm-console start", "it is gone. vllm-console start."),
        ("it is gone", "", "it is gone."),
    ],
)
def test_they_are_sentences_without_what_a_shell_would_be_needed_for(fact: str, remedy: str, said: str) -> None:
    assert in_sentences(fact, remedy) == said
