"""The controller, with its defaults, before what a real engine reported under four loads that nothing held back.

It observes: a recorded engine does not answer. When it would act, for what, and when it would let go again. What
becomes of the same loads when it acts is in `test_auto_in_the_loop`.
"""

from __future__ import annotations

import math

import pytest

from engine_host.profiles.throttle_table import Auto

from .recorded import Replay

ABORT_AT = 50.0
"""When the clients of `step` hang up, in seconds since its begin."""
ALONE_S = 15.0
"""Watched on after the last step of a recording."""


def replay(name: str, ends_at: float = math.inf) -> Replay:
    return Replay(name, Auto(mode="observe"), ALONE_S, ends_at=ends_at)


def first_choke(run: Replay) -> float:
    """When the cache was first as good as full."""
    return next(gauges.at for gauges in run.gauges if (gauges.kv or 0.0) > 0.95)


def test_a_step_is_met_within_seconds_of_the_choke() -> None:
    run = replay("step")
    at, action = run.actions[0]
    assert -2.0 < at - first_choke(run) < 6.0
    running = max(gauges.running or 0 for gauges in run.gauges)
    assert action.cap is not None and 0.4 * running <= action.cap < running


def test_a_step_is_told_once() -> None:
    run = replay("step")
    caps = [action.cap for _, action in run.actions]
    assert len(caps) == 2 and caps[1] is None


@pytest.mark.parametrize("ends_at", [math.inf, ABORT_AT], ids=["a last step says so", "no step comes any more"])
def test_it_lets_go_when_all_clients_hang_up_at_once(ends_at: float) -> None:
    """The load ends with a mass abort. vLLM 0.32 reports a last step with nothing in it; field case 5 is the release
    that did not, whose gauges stood at nine tenths for ever."""
    run = replay("step", ends_at)
    assert (run.gauges[-1].kv or 0.0) > 0.8 or ends_at == math.inf
    gone_at = next(gauges.at for gauges in reversed(run.gauges) if gauges.inflight > 20)
    at, action = run.actions[-1]
    assert action.cap is None
    assert at - gone_at <= 3.0


def test_a_ramp_is_left_alone_until_the_engine_chokes() -> None:
    run = replay("ramp")
    at, action = run.actions[0]
    assert action.cap is not None
    assert max(gauges.kv or 0.0 for gauges in run.gauges if gauges.at < at - 3.0) > 0.5, "it was well under way"
    assert abs(at - first_choke(run)) < 8.0


def test_a_spike_is_met_and_let_go_again() -> None:
    run = replay("spike")
    (_, cut), (_, gone) = run.actions[:2]
    assert cut.cap is not None
    assert gone.cap is None


def test_long_prompts_are_met_for_their_queue() -> None:
    """Field case 23: the KV cache is never near its threshold."""
    run = replay("prefill")
    _, action = run.actions[0]
    assert "waiting for" in action.text and "KV" not in action.text
    assert action.cap is not None and action.cap < 20
    assert max(gauges.kv or 0.0 for gauges in run.gauges) < 0.3


def test_what_is_easily_carried_is_left_alone() -> None:
    for name in ("step", "spike", "ramp", "prefill"):
        run = replay(name)
        calm = [gauges for gauges in run.gauges if gauges.at < 8.0]
        assert all(at > 8.0 for at, _ in run.actions), (name, run.actions, calm[-1])
