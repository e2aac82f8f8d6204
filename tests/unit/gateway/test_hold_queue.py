"""Who is next and who leaves: higher classes first, first come first within one, and no class starves."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from engine_host.gateway.hold_queue import HoldQueue

LOW, NORMAL, HIGH = 0, 1, 2
PATIENCE_S = 15.0


@dataclass(eq=False)
class One:
    rank: int
    since: float


def queue_of(*waiters: One) -> HoldQueue[One]:
    queue: HoldQueue[One] = HoldQueue(3)
    for waiter in waiters:
        queue.add(waiter, PATIENCE_S)
    return queue


ARRIVALS = st.lists(st.integers(LOW, HIGH), min_size=1, max_size=40)


@given(ARRIVALS)
def test_while_nobody_starves_the_order_is_by_class_and_then_by_arrival(ranks: list[int]) -> None:
    waiters = [One(rank, float(at)) for at, rank in enumerate(ranks)]
    queue = queue_of(*waiters)
    order = []
    while waiter := queue.next(patience_s=1e9, now=100.0):
        queue.remove(waiter, 100.0)
        queue.admitted(waiter.rank, 100.0)
        order.append(waiter)
    assert order == sorted(waiters, key=lambda one: (-one.rank, one.since))


@given(ARRIVALS)
def test_who_leaves_first_is_the_youngest_of_the_lowest_class(ranks: list[int]) -> None:
    waiters = [One(rank, float(at)) for at, rank in enumerate(ranks)]
    queue = queue_of(*waiters)
    order = []
    while waiter := queue.least(patience_s=1e9, now=100.0):
        queue.remove(waiter, 100.0)
        order.append(waiter)
    assert order == sorted(waiters, key=lambda one: (one.rank, -one.since))


@given(ARRIVALS | st.just([]), st.integers(LOW, HIGH), st.floats(0.0, 60.0))
def test_where_nobody_is_lesser_than_who_comes_it_would_be_the_one_to_leave(
    ranks: list[int], rank: int, patience_s: float
) -> None:
    queue, newcomer = queue_of(*(One(rank, float(at)) for at, rank in enumerate(ranks))), One(rank, 50.0)
    queue.wants(rank, patience_s, 50.0)
    has_lesser = queue.has_lesser(rank, patience_s, 50.0)
    queue.add(newcomer, patience_s)
    assert has_lesser or queue.least(patience_s, 50.0) is newcomer
    if queue.least(patience_s, 50.0) is newcomer and ranks.count(rank):
        assert not has_lesser


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(LOW, HIGH)),
        st.tuples(st.just("hang up"), st.integers(0, 1_000)),
        st.tuples(st.sampled_from(["admit", "shed"]), st.integers(0, 30)),
    ),
    max_size=120,
)


@given(STEPS)
def test_within_a_class_who_came_first_goes_first_whatever_happens(steps: list[tuple[str, int]]) -> None:
    queue: HoldQueue[One] = HoldQueue(3)
    waiting: list[One] = []
    now = 0.0
    for what, number in steps:
        now += 1.0
        if what == "add":
            waiting.append(One(number, now))
            queue.add(waiting[-1], PATIENCE_S)
        elif what == "hang up" and waiting:
            queue.remove(waiting.pop(number % len(waiting)), now)
        elif what == "admit" and waiting:
            now += number
            chosen = queue.next(PATIENCE_S, now)
            assert chosen is not None
            assert chosen is next(one for one in waiting if one.rank == chosen.rank)
            queue.remove(chosen, now)
            queue.admitted(chosen.rank, now)
            waiting.remove(chosen)
        elif what == "shed" and waiting:
            chosen = queue.least(PATIENCE_S, now)
            assert chosen is not None
            assert chosen is [one for one in waiting if one.rank == chosen.rank][-1]
            queue.remove(chosen, now)
            waiting.remove(chosen)
        assert len(queue) == len(waiting)
        assert queue.all() == waiting
        assert queue.oldest() is (waiting[0] if waiting else None)
        assert [queue.held(rank) for rank in range(3)] == [sum(w.rank == rank for w in waiting) for rank in range(3)]


@settings(max_examples=60)
@given(st.integers(1, 20), st.floats(0.2, 3.0), st.integers(1, 6))
def test_under_a_flood_of_higher_ones_each_class_that_asks_is_admitted_within_two_patiences(
    size: int, admission_every_s: float, flood: int
) -> None:
    queue: HoldQueue[One] = HoldQueue(3)
    last = [0.0, 0.0, 0.0]
    now = 0.0
    for _ in range(400):
        now += admission_every_s
        for rank in [LOW, NORMAL] + [HIGH] * flood:
            newcomer = One(rank, now)
            queue.add(newcomer, PATIENCE_S)
            if len(queue) > size:
                least = queue.least(PATIENCE_S, now)
                assert least is not None
                queue.remove(least, now)
        if chosen := queue.next(PATIENCE_S, now):
            queue.remove(chosen, now)
            queue.admitted(chosen.rank, now)
            last[chosen.rank] = now
        assert max(now - at for at in last) <= 2 * PATIENCE_S


def test_a_class_that_starves_gets_one_place_and_then_waits_for_its_turn_again() -> None:
    low = [One(LOW, 0.0), One(LOW, 1.0)]
    queue = queue_of(*low, *(One(HIGH, 2.0) for _ in range(3)))
    assert queue.next(PATIENCE_S, 14.9).rank == HIGH  # type: ignore[union-attr]
    first = queue.next(PATIENCE_S, 15.0)
    assert first is low[0]
    queue.remove(low[0], 15.0)
    queue.admitted(LOW, 15.0)
    queue.admitted(HIGH, 15.0)
    assert queue.next(PATIENCE_S, 15.0).rank == HIGH  # type: ignore[union-attr]
    queue.admitted(HIGH, 30.0)
    assert queue.next(PATIENCE_S, 30.0) is low[1], "and starves anew without anybody else of it coming"


def test_of_two_that_starve_the_one_that_has_for_longer_goes_first() -> None:
    queue = queue_of(normal := One(NORMAL, 0.0), One(LOW, 1.0), One(HIGH, 2.0))
    assert queue.next(PATIENCE_S, 60.0) is normal
    queue = queue_of(One(LOW, 0.0), high := One(HIGH, 0.0))
    assert queue.next(PATIENCE_S, 60.0) is high, "both for as long"


def test_the_last_one_of_a_starving_class_is_not_pushed_out() -> None:
    queue = queue_of(One(LOW, 0.0), first := One(HIGH, 1.0), second := One(HIGH, 2.0))
    assert queue.least(PATIENCE_S, 20.0) is second
    queue.remove(second, 20.0)
    queue.admitted(HIGH, 20.0)
    assert queue.least(PATIENCE_S, 20.0) is first


def test_time_in_which_nobody_could_go_starves_no_class() -> None:
    queue = queue_of(One(LOW, 0.0), high := One(HIGH, 1.0))
    queue.begin_anew(100.0)
    assert queue.next(PATIENCE_S, 100.0) is high


def refused(queue: HoldQueue[One], rank: int, *times: float) -> None:
    for now in times:
        queue.wants(rank, PATIENCE_S, now)


def test_a_class_that_was_away_has_not_starved_meanwhile() -> None:
    queue = queue_of()
    refused(queue, LOW, 0.0)
    for one in (lows := [One(LOW, 18.0), One(LOW, 18.0)]) + [One(NORMAL, 18.0), high := One(HIGH, 18.0)]:
        queue.add(one, PATIENCE_S)
    assert queue.next(PATIENCE_S, 23.0) is high
    assert queue.next(PATIENCE_S, 33.0) is high, "they have all asked for as long, and so go by their class"
    queue.remove(high, 33.0)
    queue.admitted(HIGH, 33.0)
    queue.add(One(HIGH, 33.0), PATIENCE_S)
    queue.admitted(NORMAL, 33.0)
    assert queue.next(PATIENCE_S, 33.0) is lows[0]


def test_a_class_that_goes_on_asking_has_starved_although_it_is_refused_each_time() -> None:
    queue = queue_of()
    refused(queue, LOW, 0.0, 14.0, 28.0)
    for one in (low := One(LOW, 40.0), One(HIGH, 40.0)):
        queue.add(one, PATIENCE_S)
    assert queue.next(PATIENCE_S, 40.0) is low


def test_who_waited_until_now_has_not_been_away() -> None:
    queue = queue_of(gives_up := One(LOW, 0.0), One(HIGH, 5.0))
    queue.remove(gives_up, 29.0)
    queue.add(low := One(LOW, 31.0), PATIENCE_S)
    queue.add(One(HIGH, 31.0), PATIENCE_S)
    assert queue.next(PATIENCE_S, 31.0) is low


def test_a_class_that_asks_rarely_keeps_its_right_to_a_seat_and_goes_once_it_has_waited() -> None:
    queue = queue_of()
    refused(queue, LOW, 0.0)
    queue.add(One(HIGH, 30.0), PATIENCE_S)
    queue.add(low := One(LOW, 31.0), PATIENCE_S)
    queue.add(second := One(HIGH, 32.0), PATIENCE_S)
    queue.admitted(HIGH, 32.0)
    assert queue.least(PATIENCE_S, 32.0) is second
    assert queue.next(PATIENCE_S, 45.9) is not low and queue.next(PATIENCE_S, 46.0) is low


def test_a_right_to_a_seat_is_forgotten_after_two_hold_deadlines() -> None:
    queue = queue_of()
    refused(queue, LOW, 0.0)
    queue.add(low := One(LOW, 61.0), PATIENCE_S)
    queue.add(One(HIGH, 61.0), PATIENCE_S)
    assert queue.least(PATIENCE_S, 62.0) is low
