"""How many tokens one request may have, by context and KV cache."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine_host.gateway.room import Room, max_tokens_of, room_of
from tests.unit.gateway.test_overlong import FACTS


@pytest.mark.parametrize(
    ("context", "blocks", "told", "cores", "cache"),
    [
        (2048, 66, 67 * 32, 1, 66 * 32),  # vLLM's own block is counted in what it tells
        (250, 7, 250, 1, 7 * 32),  # eight blocks hold one request of 250 tokens, says vLLM; seven hold 224
        (2048, 66, 66 * 32, 1, 66 * 32),  # older releases tell nothing, and the host counts blocks
        (2048, 132, 2 * 67 * 32, 2, 66 * 32),  # a request is in one core
        (4096, 66, 67 * 64, 1, 66 * 64),  # context parallel: a block holds twice as many
    ],
)
def test_the_cache_for_one_request_is_what_can_be_given_to_it(
    context: int, blocks: int, told: int, cores: int, cache: int
) -> None:
    facts = replace(
        FACTS,
        max_model_len_tokens=context,
        total_blocks=blocks,
        capacity_tokens=told,
        block_size=32,
        core_pids=tuple(range(cores)),
    )
    room = room_of(facts)
    assert room is not None and room.cache == cache
    assert room.is_cache_short == (cache < context)


def test_unknown_stays_unknown() -> None:
    assert room_of(replace(FACTS, max_model_len_tokens=None)) is None
    room = room_of(replace(FACTS, capacity_tokens=None))
    assert room is not None and room.cache is None and not room.is_cache_short
    room = room_of(replace(FACTS, block_size=None, total_blocks=None, capacity_tokens=100, core_pids=(1, 2)))
    assert room is not None and room.cache == 50


def test_a_cut_prompt_leaves_room_for_its_answer() -> None:
    assert Room(64, None, False).cut_prompt(16) == 48
    assert Room(64, None, False).cut_prompt(0) == 63
    assert Room(64, 40, False).cut_prompt(None) == 35
    assert Room(4, None, False).cut_prompt(None) == 3


@pytest.mark.parametrize(
    ("value", "read"), [(7, 7), (7.0, 7), ("7", 7), ("x", None), (None, None), ([], None), (float("inf"), None)]
)
def test_max_tokens_is_read_as_vllm_reads_it(value: object, read: int | None) -> None:
    assert max_tokens_of("/v1/completions", {"max_tokens": value}) == read
    assert max_tokens_of("/v1/chat/completions", {"max_tokens": value}) == read
    assert max_tokens_of("/v1/completions", {}) == 16
