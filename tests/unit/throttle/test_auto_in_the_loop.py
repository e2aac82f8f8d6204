"""The controller, with its defaults, in a loop with a model of an engine: what it gains, and that it comes to rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from engine_host.profiles.throttle_table import Auto

from .plant import Engine, Run, World, arrivals

SUSTAINED = 1.1
"""Requests a second that the model engine gets through, mixed lengths; measured by `test_the_model_chokes`."""
MINUTES_5 = 300.0


def settled(**settings: Any) -> Auto:
    return Auto(mode="on", **settings)


def run(settings: Auto | None, rate: Callable[[float], float], seconds: float, seed: int = 3, **lengths: Any) -> Run:
    return World(Engine(), settings).run(seconds, arrivals(seconds, rate, seed=seed, **lengths))


def flood(at: float) -> float:
    return 3 * SUSTAINED


def test_the_model_chokes() -> None:
    """As the real engine does: a full cache, and two preemptions in three seconds."""
    choked = run(None, flood, MINUTES_5)
    kv = [gauges.kv or 0.0 for gauges in choked.trace]
    assert sum(kv) / len(kv) > 0.9
    assert choked.preemptions > 150
    assert choked.answered / MINUTES_5 == pytest.approx(SUSTAINED, rel=0.1)


@pytest.mark.parametrize("seed", [3, 4, 5])
def test_overload_for_five_minutes(seed: int) -> None:
    without, with_auto = (run(settings, flood, MINUTES_5, seed) for settings in (None, settled()))
    assert with_auto.preemptions <= 0.1 * without.preemptions
    assert with_auto.ttft_p95_s() <= 0.5 * without.ttft_p95_s()
    assert with_auto.tokens_per_s >= 0.95 * without.tokens_per_s
    assert with_auto.direction_changes_in_any_minute() <= 6
    assert with_auto.answered + with_auto.refused + with_auto.left == with_auto.sent


def test_the_first_cut_comes_before_the_harm_is_done() -> None:
    run_ = run(settled(), flood, 30.0)
    (first_at, first), *_ = run_.actions
    assert first_at < 14.0
    assert first.cap is not None and first.cap >= 8


def test_with_the_dial_those_who_are_in_already_preempt_each_other_less() -> None:
    def first_minute(**settings: Any) -> int:
        return sum(run(settled(**settings), flood, 60.0, seed).preemptions for seed in range(5))

    assert first_minute(dials=["max_active_seqs"]) < 0.9 * first_minute()


@pytest.mark.parametrize("blocks", [101, 300])
@pytest.mark.parametrize(
    "lengths",
    [{"prompt": (16, 64), "answer": (128, 512)}, {"prompt": (200, 600), "answer": (16, 96)}],
    ids=["long answers", "long prompts"],
)
def test_other_loads_lose_no_tokens_and_do_not_saw(lengths: dict[str, Any], blocks: int) -> None:
    def flooded(settings: Auto | None) -> Run:
        world = World(Engine(blocks=blocks, max_seqs=128), settings)
        return world.run(200.0, arrivals(200.0, lambda at: 3.0, **lengths))

    without, with_auto = flooded(None), flooded(settled())
    assert with_auto.tokens_per_s >= 0.95 * without.tokens_per_s
    assert with_auto.preemptions < without.preemptions
    assert with_auto.direction_changes_in_any_minute() <= 6


def test_a_step_settles() -> None:
    """From a load that is easily carried to three times what can be, and back."""
    world = World(Engine(), settled())
    load = arrivals(400.0, lambda at: 0.4 * SUSTAINED if at < 60 or at > 260 else 3 * SUSTAINED)
    before = world.run(60.0, load)
    assert before.actions == []
    high = world.run(200.0, load)
    late = [cap for at, cap in high.caps if at > 120.0 and cap is not None]
    assert max(late) - min(late) <= 5
    assert high.direction_changes_in_any_minute() <= 6
    world.run(60.0, load)
    assert world.cap is None


def test_lets_go_within_ten_seconds_of_the_load() -> None:
    world = World(Engine(), settled())
    world.run(120.0, arrivals(120.0, flood))
    assert world.cap is not None
    while world.held:  # what waits at the gate is still load
        world.run(0.25, iter(()))
    gone_at = world.now
    while world.cap is not None:
        world.run(0.25, iter(()))
    assert world.now - gone_at <= 10.0


def test_a_ramp_is_met_where_the_engine_chokes() -> None:
    ramp = run(settled(), lambda at: SUSTAINED * (0.3 + 2.2 * at / 240.0), 240.0)
    first_at, first = ramp.actions[0]
    assert 60.0 < first_at < 200.0, "not before the load exceeds what the engine sustains"
    assert first.cap is not None and 6 <= first.cap <= 20
    assert ramp.direction_changes_in_any_minute() <= 6


def test_a_spike_is_let_go_again() -> None:
    world = World(Engine(), settled())
    spike = world.run(120.0, arrivals(120.0, lambda at: 12 * SUSTAINED if 20 < at < 23 else 0.4 * SUSTAINED))
    assert spike.caps and spike.caps[0][0] < 32.0
    assert world.cap is None, "the spike is long over"
    assert spike.direction_changes_in_any_minute() <= 6


def test_long_prompts_queue_with_the_cache_low_and_are_met_too() -> None:
    """Field case 23."""
    engine = Engine(blocks=1000)
    world = World(engine, settled())
    prefill = world.run(120.0, arrivals(120.0, lambda at: 4.0, prompt=(500, 900), answer=(1, 4)))
    assert max(gauges.kv or 0.0 for gauges in prefill.trace) < 0.5
    (_, first), *_ = prefill.actions
    assert "waiting for" in first.text and "KV" not in first.text
    assert all((gauges.waiting or 0) <= 8 for gauges in prefill.trace if gauges.at > 30.0)
    flooded = World(Engine(blocks=1000), None).run(
        120.0, arrivals(120.0, lambda at: 4.0, prompt=(500, 900), answer=(1, 4))
    )
    assert prefill.answered >= 0.95 * flooded.answered, "the engine is kept busy"
    assert prefill.direction_changes_in_any_minute() <= 6


def test_what_may_be_admitted_grows_when_requests_become_smaller() -> None:
    """The cap that was right for long requests is not kept for short ones."""
    world = World(Engine(), settled())
    world.run(120.0, arrivals(120.0, flood))
    long_cap = world.cap
    assert long_cap is not None
    begin = world.now
    short = (
        (begin + at, prompt, answer) for at, prompt, answer in arrivals(180.0, lambda at: 30.0, (16, 32), (16, 32))
    )
    world.run(180.0, short)
    assert world.cap is None or world.cap >= 2 * long_cap


def test_a_pause_at_the_gate_is_no_reason_for_anything() -> None:
    world = World(Engine(), settled())
    load = arrivals(200.0, flood)
    world.run(100.0, load)
    cap = world.cap
    world.is_paused = True
    assert world.run(20.0, load).actions == []
    world.is_paused = False
    world.run(2.0, load)
    assert world.cap == cap


def test_observing_never_touches_the_load() -> None:
    watched, alone = (run(settings, flood, 60.0) for settings in (Auto(mode="observe"), None))
    assert watched.caps == []
    assert watched.actions
    assert watched.tokens == pytest.approx(alone.tokens, rel=0.05)
