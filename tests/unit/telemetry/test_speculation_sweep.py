"""The recommendation for K against a sweep over engines whose acceptance and step times are known."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.telemetry.speculating_engine import (
    Cost,
    SpeculatingEngine,
    draft_heavy,
    verification_heavy,
    with_a_corner,
)

NEAR = 0.95
"""What the recommended K must yield of the best one's tokens per second."""

sure = settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
"""Each example is a measurement with noise; the same ones every time, so that a failure is a change of ours."""


@st.composite
def conditional_rates(draw: st.DrawFn) -> list[float]:
    """P(i accepted | i - 1 accepted): a first one, and a fall."""
    k_max = draw(st.integers(2, 8))
    first, fall = draw(st.floats(0.3, 0.97)), draw(st.floats(0.7, 1.0))
    return [first * fall**position for position in range(k_max)]


bases = st.floats(0.005, 0.03)
straight = st.one_of(
    st.builds(draft_heavy, bases, st.floats(0.03, 0.4)),
    st.builds(verification_heavy, bases, st.floats(0.05, 0.6)),
)
crooked = st.builds(with_a_corner, bases, st.floats(0.1, 0.5), st.floats(0.0, 8.0))


@st.composite
def engines(draw: st.DrawFn, costs: st.SearchStrategy[Cost]) -> SpeculatingEngine:
    return SpeculatingEngine(
        draw(conditional_rates()),
        draw(costs),
        requests=draw(st.sampled_from([8, 16, 64, 200])),
        noise=draw(st.floats(0.0, 0.05)),
        seed=draw(st.integers(0, 2**31)),
    )


@sure
@given(engine=engines(straight), other=st.integers(0, 7))
def test_two_ks_measured_name_the_best_one(engine: SpeculatingEngine, other: int) -> None:
    engine.run(other % engine.k_max, 30)
    engine.run(engine.k_max, 30)
    said = engine.advice().recommendation
    assert said is not None
    if said.try_k is not None:
        # Two neighbours say little of what is far from them; what is asked for settles it.
        engine.follow()
        said = engine.advice().recommendation
        assert said is not None
    assert said.k is not None
    assert engine.true_speed(said.k) >= NEAR * engine.best_speed


@sure
@given(engine=engines(crooked))
def test_following_the_advice_ends_at_the_best_k_also_where_costs_have_a_corner(engine: SpeculatingEngine) -> None:
    engine.run(engine.k_max)
    engine.follow()
    assert engine.true_speed(engine.k) >= NEAR * engine.best_speed


@sure
@given(
    rates=conditional_rates(),
    share=st.floats(0.1, 1.0),
    token=st.floats(0.0, 0.15),
    seed=st.integers(0, 2**31),
)
def test_drafts_that_are_looked_up_count_for_the_share_that_is_found(
    rates: list[float], share: float, token: float, seed: int
) -> None:
    engine = SpeculatingEngine(rates, lambda k: 0.01 * (1 + token * k * share), share=share, noise=0.05, seed=seed)
    engine.run(0, 30)
    engine.run(engine.k_max, 30)
    engine.follow()
    assert engine.true_speed(engine.k) >= NEAR * engine.best_speed


@sure
@given(rates=conditional_rates(), data=st.data())
def test_with_every_k_measured_the_best_is_named_whatever_they_cost(rates: list[float], data: st.DataObject) -> None:
    costs = [data.draw(st.floats(0.005, 0.02)) for _ in range(len(rates) + 1)]
    engine = SpeculatingEngine(rates, costs.__getitem__, requests=32)
    for k in range(engine.k_max + 1):
        engine.run(k, 10)
    said = engine.advice().recommendation
    assert said is not None
    assert said.k is not None
    assert engine.true_speed(said.k) >= NEAR * engine.best_speed
    assert all(choice.is_measured for choice in said.choices)
