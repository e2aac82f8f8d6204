"""The dials of vLLM's real scheduler."""

from __future__ import annotations

import pytest

from engine_host.live.sample import DialName
from tests.unit.live.steered_live import Start

pytest.importorskip("vllm")


def test_k_changes_with_the_next_draft(start: Start) -> None:
    live = start()
    live.runner.add("a", 10, 500)
    ks = []
    for k in (5, 0, 2, 5):
        asked = live.dial(speculative_tokens=k)
        for _ in range(3):
            output = live.runner.step()
        assert live.board.applied[0] == asked
        ks.append((output.num_spec_tokens_to_schedule, len(output.scheduled_spec_decode_tokens.get("a", ()))))
    assert ks == [(5, 5), (0, 0), (2, 2), (5, 5)]
    assert live.scheduler.dynamic_sd_lookup is None, "at full K vLLM goes by its own rules again"


def test_fewer_are_admitted_and_those_that_run_go_on(start: Start) -> None:
    live = start(k=0)
    for n in range(40):
        live.runner.add(f"r{n}", 10, 12)
    running = []
    for limit in (16, 2, 16):
        live.dial(max_active_seqs=limit)
        for _ in range(3):
            live.runner.step()
        running.append(len(live.scheduler.running))
        assert live.sample().dials[DialName.MAX_ACTIVE_SEQS] == limit
        if limit == 2:
            while len(live.scheduler.running) > 2:
                live.runner.step()
            assert len(live.scheduler.running) in (0, 1, 2)
    assert running == [16, 16, 16]
    while live.scheduler.has_requests():
        live.runner.step()
    assert not live.scheduler.requests


def test_fewer_tokens_are_scheduled(start: Start) -> None:
    live = start(k=0)
    live.runner.add("long", 2_000, 5)
    assert live.runner.step().total_num_scheduled_tokens == 512
    live.dial(max_scheduled_tokens=100)
    assert live.runner.step().total_num_scheduled_tokens == 100
    live.dial(max_scheduled_tokens=512)
    assert live.runner.step().total_num_scheduled_tokens == 512


def test_an_idle_core_applies_them_when_it_is_asked_anything(start: Start) -> None:
    live = start()
    asked = live.dial(max_active_seqs=3, speculative_tokens=1)
    assert live.board.applied[0] == 0
    assert live.scheduler.has_requests() is False
    assert live.board.applied == (
        asked,
        {DialName.MAX_ACTIVE_SEQS: 3, DialName.MAX_SCHEDULED_TOKENS: 512, DialName.SPECULATIVE_TOKENS: 1},
    )


def test_a_value_outside_its_range_is_not_applied(start: Start) -> None:
    """The host refuses it before; the core would not want to find out."""
    live = start()
    live.dial(max_active_seqs=17, max_scheduled_tokens=1, speculative_tokens=6)
    live.scheduler.has_requests()
    assert live.board.applied[1] == {name: span.start for name, span in live.board.ranges.items()}
