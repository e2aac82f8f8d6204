"""What is said of K, and what it rests on; that it is the best one is for `test_speculation_sweep`."""

from __future__ import annotations

import re

import pytest

from engine_host.live.sample import DialName
from engine_host.telemetry.step_costs import MAX_AGE_S
from tests.unit.scripted_scheduler import RANGES, ScriptedScheduler, live_sample
from tests.unit.telemetry.speculating_engine import SpeculatingEngine, draft_heavy, verification_heavy


def test_the_speed_up_is_the_true_one() -> None:
    engine = SpeculatingEngine([0.8, 0.7, 0.6, 0.5, 0.4], draft_heavy(0.01, 0.1), noise=0.05)
    engine.run(0, 20)
    engine.run(5, 20)
    assert engine.advice().speed_up == pytest.approx(engine.true_speed(5) / engine.true_speed(0), rel=0.03)
    engine.run(0, 20)
    assert engine.advice().speed_up == 1.0


def test_the_text_of_a_change_has_the_numbers_that_it_rests_on() -> None:
    engine = SpeculatingEngine([0.8, 0.5, 0.3, 0.2, 0.1], draft_heavy(0.01, 0.3), requests=8)
    engine.run(0, 10)
    engine.run(5, 60)
    said = engine.advice().recommendation
    assert said is not None
    assert (said.k, said.concurrency) == (1, 8)
    assert said.gain == pytest.approx(engine.true_speed(1) / engine.true_speed(5), rel=0.03)
    assert re.fullmatch(
        r"K 1 gives 1\.\d\d times the tokens/s of K 5 at 8 requests: 1\.\d\d tokens in 13\.0 ms a step, against "
        r"2\.\d\d tokens in 25\.0 ms\. Its step time is inferred from K 0 and 5\.",
        said.text,
    )
    assert [choice.k for choice in said.choices] == [0, 1, 2, 3, 4, 5]
    assert [choice.is_measured for choice in said.choices] == [True, False, False, False, False, True]


def test_a_k_that_no_other_beats_by_much_is_right() -> None:
    engine = SpeculatingEngine([0.8, 0.7, 0.6, 0.5], lambda k: 0.01 * engine_tokens(k), requests=16)

    def engine_tokens(k: int) -> float:
        return engine.true_tokens(k) * (1.02 if k == 4 else 1.0)

    for k in range(5):
        engine.run(k, 20)
    said = engine.advice().recommendation
    assert said is not None
    assert (said.k, said.gain) == (4, 1.0)
    assert said.text.startswith("K 4 is right at 16 requests: ")


def test_one_k_alone_tells_nothing_of_the_cost_of_a_draft_token() -> None:
    engine = SpeculatingEngine([0.8, 0.7, 0.6, 0.5, 0.4], draft_heavy(0.01, 0.1))
    engine.run(5, 60)
    advice = engine.advice()
    assert advice.speed_up is None
    assert advice.recommendation is not None
    assert advice.recommendation.k is None
    assert "only K 5 has been measured" in advice.recommendation.text
    assert (advice.recommendation.try_k, advice.recommendation.try_s) == (2, 10)
    assert advice.recommendation.text.endswith("Run K 2 for 10 s: `vllm-console dial speculative_tokens=2 --for 10s`")


def test_an_engine_with_slow_steps_is_given_the_time_for_as_many() -> None:
    engine = SpeculatingEngine([0.8, 0.7, 0.6, 0.5, 0.4], draft_heavy(0.4, 0.05))
    engine.run(5, 60)
    said = engine.advice().recommendation
    assert said is not None
    assert (said.try_k, said.try_s) == (2, 30)
    engine.run(said.try_k, said.try_s)
    engine.run(5, 5)
    said = engine.advice().recommendation
    assert said is not None
    assert [choice.k for choice in said.choices if choice.is_measured] == [2, 5]


def test_too_few_steps_say_how_many_are_missing() -> None:
    engine = SpeculatingEngine([0.8, 0.7], draft_heavy(0.1, 0.1))
    engine.run(2, 2)
    said = engine.advice().recommendation
    assert said is not None
    assert said.k is None
    # The first two may still verify what was drafted before.
    assert "K 2 has 14 decode steps in 2 s; it takes 30 in 3 s, at about 16 requests" in said.text


def test_at_k_0_for_long_nothing_is_known_of_acceptance() -> None:
    engine = SpeculatingEngine([0.8, 0.7, 0.6], draft_heavy(0.01, 0.1))
    engine.run(3, 20)
    engine.run(0, int(MAX_AGE_S) + 1)
    said = engine.advice().recommendation
    assert said is not None
    assert said.k is None
    assert "nothing was drafted in the last 5 minutes" in said.text
    assert said.try_k == 3


def test_steps_at_another_concurrency_do_not_count() -> None:
    engine = SpeculatingEngine([0.8, 0.7, 0.6], draft_heavy(0.01, 0.1))
    engine.run(1, 20, requests=64)
    engine.run(3, 20, requests=16)
    said = engine.advice().recommendation
    assert said is not None
    assert "at 16 requests only K 3 has been measured" in said.text


def test_positions_not_drafted_lately_are_recommended_two_at_a_time_and_marked() -> None:
    engine = SpeculatingEngine([0.95] * 8, draft_heavy(0.01, 0.02), requests=16)
    engine.run(8, 20)
    engine.run(2, 280)
    engine.run(1, 20)
    engine.run(2, 20)
    said = engine.advice().recommendation
    assert said is not None
    assert said.k == 4
    assert "Acceptance after position 2 is inferred" in said.text
    engine.follow()
    assert engine.k >= 7


def test_a_k_drafted_minutes_ago_still_tells_of_its_positions() -> None:
    engine = SpeculatingEngine([0.95] * 5, draft_heavy(0.01, 0.02), requests=16)
    engine.run(5, 20)
    engine.run(2, 120)
    said = engine.advice().recommendation
    assert said is not None
    assert said.k == 5
    assert "inferred" not in said.text


def test_step_times_of_minutes_ago_do_not_count() -> None:
    engine = SpeculatingEngine([0.8, 0.7, 0.6], draft_heavy(0.01, 0.1))
    engine.run(1, 20)
    engine.run(3, int(MAX_AGE_S) + 1)
    said = engine.advice().recommendation
    assert said is not None
    assert "only K 3 has been measured in the last 5 minutes" in said.text


def test_a_gain_within_what_may_be_wrong_is_no_recommendation() -> None:
    """Two neighbours measured with noise say little of what is far from them."""
    engine = SpeculatingEngine([0.6, 0.5, 0.5, 0.5], verification_heavy(0.05, 0.3), requests=4, noise=0.3, seed=0)
    engine.run(3, 10)
    engine.run(4, 10)
    said = engine.advice().recommendation
    assert said is not None
    assert (said.k, said.gain) == (None, None)
    assert re.search(r"K 1 may give 1\.\d\d times .* but that may be wrong by \d\d%\. Run K 1 for 10 s", said.text)
    assert said.try_k == 1


def test_a_corner_that_may_lie_between_two_measured_ks_is_worth_a_try() -> None:
    """Two tokens a request are verified for nothing, each more costs a whole step: the line hides the best K."""
    engine = SpeculatingEngine([0.5] * 5, lambda k: 0.01 * (1 + max(0, k - 2)), requests=32)
    engine.run(5, 20)
    engine.run(0, 20)
    said = engine.advice().recommendation
    assert said is not None
    assert said.k == 0
    assert said.try_k is not None
    assert "is not measured and might do better" in said.text
    engine.follow()
    assert engine.k == 2


def test_beyond_the_measured_ks_a_step_costs_what_the_last_of_them_cost_more() -> None:
    engine = SpeculatingEngine([0.9] * 8, lambda k: 0.01 * (1 + 0.2 * max(0, k - 2)), requests=32)
    for k in (8, 0, 2, 4):
        engine.run(k, 20 if k < 8 else 1)
    said = engine.advice().recommendation
    assert said is not None
    assert said.choices[8].step_s == pytest.approx(0.022, rel=0.01)
    assert not said.choices[8].is_measured


def test_idle_engine_is_not_judged() -> None:
    engine = SpeculatingEngine([0.8, 0.7], draft_heavy(0.01, 0.1))
    engine.run(1, 20)
    engine.run(2, 20)
    engine.now += 11
    said = engine.advice().recommendation
    assert said is not None
    assert (said.k, said.text) == (None, "not known: nothing has been decoded in the last 10 s")


def test_without_a_scheduler_to_look_into_the_reason_is_said() -> None:
    engine = SpeculatingEngine([0.8, 0.7], draft_heavy(0.01, 0.1))
    advice = engine.advisor.advice("vLLM 0.40 is not known here", 2)
    assert (advice.k, advice.speed_up) == (2, None)
    assert advice.recommendation is not None
    assert advice.recommendation.k is None
    assert advice.recommendation.text.endswith("vLLM 0.40 is not known here")


def test_k_of_a_schedule_by_batch_size_is_the_one_in_force() -> None:
    engine = SpeculatingEngine([0.8, 0.7, 0.6], draft_heavy(0.01, 0.1))
    engine.run(1, 20)
    engine.scheduler.newest = [live_sample(dials={DialName.SPECULATIVE_TOKENS: 3})]
    assert engine.advice().k == 3
    engine.run(1, 2)
    engine.scheduler.newest = [live_sample(dials={DialName.SPECULATIVE_TOKENS: 3})]
    engine.now -= 0.5
    assert engine.advice().k == 1
    engine.now += 2.0
    assert engine.advice().k == 3


def test_without_the_dial_the_reason_is_said() -> None:
    engine = SpeculatingEngine([0.8, 0.7], draft_heavy(0.01, 0.1))
    fixed = {name: span for name, span in RANGES.items() if name is not DialName.SPECULATIVE_TOKENS}
    said = engine.advisor.advice(ScriptedScheduler(fixed), 2).recommendation
    assert said is not None
    assert "K is 2 for as long as this engine runs" in said.text


def test_without_an_engine_or_speculation_nothing_is_said() -> None:
    engine = SpeculatingEngine([0.8, 0.7], draft_heavy(0.01, 0.1))
    assert engine.advisor.advice(None, None).recommendation is None
    assert engine.advisor.advice(engine.scheduler, None).recommendation is None


def test_another_engine_begins_with_nothing() -> None:
    engine = SpeculatingEngine([0.8, 0.7], draft_heavy(0.01, 0.1))
    engine.run(1, 20)
    engine.run(2, 20)
    assert engine.advice().speed_up is not None
    engine.advisor.collect(ScriptedScheduler())
    assert engine.advice().speed_up is None


def test_what_is_looked_up_and_not_found_yields_nothing() -> None:
    engine = SpeculatingEngine([0.9] * 8, draft_heavy(0.01, 0.01), requests=64, share=0.3)
    engine.run(0, 10)
    engine.run(8, 30)
    said = engine.advice().recommendation
    assert said is not None
    assert [choice.tokens_per_step for choice in said.choices] == pytest.approx(
        [engine.true_tokens(k) for k in range(9)], rel=0.02
    )


def test_text_that_is_passed_faster_at_a_large_k_is_judged_by_what_was_measured() -> None:
    """A passage that is easy to draft is over after few steps of a large K, and the rest makes up most of its steps."""
    engine = SpeculatingEngine([0.9] * 8, draft_heavy(0.01, 0.03), requests=64)
    engine.run(0, 10)
    engine.conditional, engine.share = [0.5] * 8, 0.4
    engine.run(8, 40)
    large = engine.true_tokens(8)
    engine.conditional, engine.share = [0.9] * 8, 0.9
    engine.run(1, 40)
    said = engine.advice().recommendation
    assert said is not None
    assert said.choices[8].tokens_per_step == pytest.approx(large, rel=0.03)
    assert said.choices[1].tokens_per_step == pytest.approx(1 + 0.9 * 0.9, rel=0.03)
