"""`[dials]` against the engine that they are to be set on."""

from __future__ import annotations

from typing import Any

import pytest

from engine_host.preflight.dials import check_dials
from engine_host.preflight.setting import Setting

from .facts import facts

SPECULATION = {"method": "ngram", "num_speculative_tokens": 5}


def found(dials: dict[str, int], *, built: bool = True, **engine: Any) -> list[str]:
    resolved = facts() if built else None
    return [finding.text for finding in check_dials(dials, Setting(engine=engine, facts=resolved))]


def test_dials_within_what_the_engine_is_started_with_are_no_finding() -> None:
    assert found({"max_active_seqs": 32, "max_scheduled_tokens": 2048, "speculative_tokens": 0}) == []


@pytest.mark.parametrize(
    ("dials", "text"),
    [
        ({"max_active_seqs": 33}, "dials.max_active_seqs = 33 is above max_num_seqs = 32"),
        ({"max_scheduled_tokens": 4096}, "dials.max_scheduled_tokens = 4096 is above max_num_batched_tokens = 2048"),
        ({"speculative_tokens": 6}, "dials.speculative_tokens = 6 is above num_speculative_tokens = 5"),
    ],
)
def test_one_above_it_is_refused(dials: dict[str, int], text: str) -> None:
    [told] = found(dials)
    assert told.startswith(text)


def test_without_a_built_configuration_the_profile_itself_is_asked() -> None:
    assert found({"max_active_seqs": 9}, built=False) == []  # vLLM's own default is not known here
    assert len(found({"max_active_seqs": 9}, built=False, max_num_seqs=8)) == 1
    assert len(found({"speculative_tokens": 6}, built=False, speculative_config=SPECULATION)) == 1


def test_a_draft_length_without_speculation_is_refused() -> None:
    assert found({"speculative_tokens": 2}, built=False) == [
        "dials.speculative_tokens = 2, but the profile has no speculation"
    ]
