"""When the host tries again and when it gives up."""

from dataclasses import dataclass

from engine_host.engine.crash_policy import BACKOFF_S, CRASH_LIMIT, CRASH_WINDOW_S, CrashPolicy


@dataclass
class Clock:
    now: float = 50.0

    def __call__(self) -> float:
        return self.now


def pause_after(policy: CrashPolicy, *, had_served: bool) -> float | None:
    policy.crashed(had_served=had_served)
    return policy.pause_s


def test_pauses_grow_and_the_third_crash_in_the_window_gives_up() -> None:
    policy = CrashPolicy(clock=Clock())
    pauses = [pause_after(policy, had_served=True) for _ in range(CRASH_LIMIT)]
    assert pauses == [*BACKOFF_S, None]


def test_crashes_of_long_ago_do_not_count() -> None:
    clock = Clock()
    policy = CrashPolicy(clock=clock)
    for _ in range(10):
        assert pause_after(policy, had_served=True) == BACKOFF_S[0]
        assert policy.recent == 1
        policy.serves()
        clock.now += CRASH_WINDOW_S + 1
        assert policy.recent == 0


def test_starts_that_fail_slowly_end_too() -> None:
    clock = Clock()
    policy = CrashPolicy(clock=clock)
    assert pause_after(policy, had_served=True) is not None
    clock.now += CRASH_WINDOW_S * 2
    assert pause_after(policy, had_served=False) is not None
    clock.now += CRASH_WINDOW_S * 2
    assert pause_after(policy, had_served=False) is None


def test_an_engine_that_serves_ends_a_row_of_failures_but_not_the_window() -> None:
    clock = Clock()
    policy = CrashPolicy(clock=clock)
    policy.crashed(had_served=True)
    policy.crashed(had_served=False)
    policy.serves()
    assert policy.recent == 2
    assert pause_after(policy, had_served=True) is None


def test_an_operators_restart_starts_the_count_anew() -> None:
    policy = CrashPolicy(clock=Clock())
    policy.crashed(had_served=True)
    policy.crashed(had_served=True)
    policy.forgive()
    assert policy.recent == 0
    assert pause_after(policy, had_served=True) == BACKOFF_S[0]
