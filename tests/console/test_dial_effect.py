"""What is said of the tokens per second before and after a dial was moved, and when nothing is."""

from __future__ import annotations

import msgspec
import pytest

from console.dial_effect import Effect, comparison, last_move, mean, value_at
from console.dials_page import effect_words
from console.model import Series, SnapshotArrived, reduce
from tests.console import sample, sample_live
from tests.console.test_overview import state_of

MOVED_AT = 5.5


def after(seconds, *, tokens_per_s=1_650.0, running=37, before=2_140.0, ran=37, moved_at=MOVED_AT, changes=None):
    """The state `seconds` after a start with K 5, which was moved to 3."""
    state = state_of(sample_live.live())
    for second in range(1, seconds + 1):
        moved = second > moved_at
        snapshot = sample_live.later(
            second,
            k=3 if moved else 5,
            moved_at=moved_at,
            tokens_per_s=tokens_per_s if second > moved_at + 10 else before,
            running=running if moved else ran,
            **(changes or {}),
        )
        state = reduce(state, SnapshotArrived(snapshot, float(second)))
    return state


def test_a_move_is_seen_with_both_values_and_whose_it_is():
    [move] = after(8).dial_moves
    assert (move.dial, move.before, move.after, move.who) == ("speculative_tokens", 5, 3, "ops")
    assert move.at == sample.AT + MOVED_AT


def test_a_move_whose_time_is_not_told_counts_from_when_it_was_seen():
    state = state_of(sample_live.live())
    base = sample_live.later(3, k=3)
    dial = msgspec.structs.replace(base.dials["speculative_tokens"], since=None, who=None)
    state = reduce(state, SnapshotArrived(msgspec.structs.replace(base, dials={"speculative_tokens": dial}), 3.0))
    assert state.dial_moves[-1].at == sample.AT + 3
    assert state.dial_moves[-1].who is None


def test_another_engine_has_moved_no_dial():
    base = sample_live.later(3, k=3)
    other = msgspec.structs.replace(base, engine=msgspec.structs.replace(base.engine, generation=3))
    assert reduce(state_of(sample_live.live()), SnapshotArrived(other, 3.0)).dial_moves == ()


def test_another_host_process_forgets_them():
    other = msgspec.structs.replace(sample_live.live().host, boot_id="boot-b")
    state = reduce(after(8), SnapshotArrived(sample_live.live(host=other), 9.0))
    assert state.dial_moves == ()


def test_until_ten_seconds_have_passed_nothing_is_said():
    assert comparison(after(8)).effect is Effect.PENDING
    assert comparison(after(16)).effect is Effect.PENDING
    assert comparison(after(17)).effect is Effect.SLOWER


def test_a_fall_at_the_same_load_is_said_with_both_numbers():
    found = comparison(after(18))
    assert (found.before, found.after) == (2_140.0, 1_650.0)
    text, _ = effect_words(found)
    assert "out 2.14k /s in the 10 s before, 1.65k /s in the 10 s after: 22.9 % SLOWER" in text
    assert "speculative_tokens 5 → 3" in text


@pytest.mark.parametrize(
    ("changes", "effect"),
    [
        ({"tokens_per_s": 2_000.0}, Effect.SAME),
        ({"tokens_per_s": 2_260.0}, Effect.SAME),
        ({"tokens_per_s": 2_600.0}, Effect.FASTER),
        ({"running": 20}, Effect.OTHER_LOAD),
        ({"running": 50}, Effect.OTHER_LOAD),
        ({"running": 0}, Effect.OTHER_LOAD),
        ({"running": 34}, Effect.SLOWER),
        ({"before": 0.0}, Effect.UNKNOWN),
    ],
)
def test_a_difference_is_only_told_where_it_is_one(changes, effect):
    found = comparison(after(30, **{"moved_at": 15.5, **changes}))
    assert found.effect is effect
    text, _ = effect_words(found)
    assert ("no comparison" in text) == (effect in {Effect.OTHER_LOAD, Effect.UNKNOWN})


def test_a_limit_of_what_runs_is_judged_by_what_wants_to_run():
    """It lowers what runs by itself: those that then wait are the same load."""
    state = state_of(sample_live.live())
    for second in range(1, 30):
        moved = second > 15
        base = sample_live.later(second, tokens_per_s=1_500.0 if second > 25 else 2_140.0)
        dial = msgspec.structs.replace(
            base.dials["max_active_seqs"],
            value=16 if moved else 64,
            since=sample.AT + 15.5 if moved else sample.AT - 300,
        )
        queue = msgspec.structs.replace(base.queue, running=16 if moved else 37, waiting=33 if moved else 12)
        snapshot = msgspec.structs.replace(base, dials={"max_active_seqs": dial}, queue=queue)
        state = reduce(state, SnapshotArrived(snapshot, float(second)))
    found = comparison(state)
    assert found.effect is Effect.SLOWER
    assert (found.load_before, found.load_after) == (49.0, 49.0)


def test_two_dials_moved_together_are_not_told_apart():
    state = after(8)
    base = sample_live.later(12, k=3, moved_at=MOVED_AT)
    dial = msgspec.structs.replace(base.dials["max_active_seqs"], value=32, since=sample.AT + 11.5)
    both = msgspec.structs.replace(base, dials={**base.dials, "max_active_seqs": dial})
    state = reduce(state, SnapshotArrived(both, 12.0))
    found = comparison(state)
    assert found.effect is Effect.OTHER_DIAL
    assert found.move.dial == "max_active_seqs"


def test_a_dial_that_has_gone_back_has_no_move_any_more():
    """The move back is the newest then, and is judged itself."""
    state = reduce(after(18), SnapshotArrived(sample_live.later(19), 19.0))
    assert (last_move(state).before, last_move(state).after) == (3, 5)


def test_figures_from_before_the_first_one_kept_are_not_made_up():
    state = after(18)
    short = {name: Series(s.end_at, s.step_s, s.values[-5:]) for name, s in state.series.items()}
    assert comparison(type(state)(**{**_fields(state), "series": short})) is None


def _fields(state):
    return {name: getattr(state, name) for name in state.__dataclass_fields__}


SERIES = Series(end_at=10.0, step_s=1.0, values=(1.0, 2.0, None, 4.0))
"""Taken at 7, 8, 9 and 10."""


@pytest.mark.parametrize(
    ("at", "value"), [(10.0, 4.0), (99.0, 4.0), (8.9, 2.0), (7.0, 1.0), (6.9, None), (-1e300, None)]
)
def test_a_value_is_the_last_one_taken_until_then(at, value):
    assert value_at(SERIES, at) == value


@pytest.mark.parametrize(
    ("begin", "end", "value"),
    [(6.0, 10.0, 7 / 3), (7.0, 10.0, 3.0), (8.0, 9.0, None), (0.0, 7.5, 1.0), (10.0, 20.0, None)],
)
def test_a_mean_is_of_what_is_known_between_two_times(begin, end, value):
    assert mean(SERIES, begin, end) == (None if value is None else pytest.approx(value))
