"""Settings that end: what is in force is what a log of them says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_host.timed_settings import Setting, Settings, span_in_words

START = Setting(5)


def setting(value: int, ends: float | None = None, who: str = "maria") -> Setting[int]:
    return Setting(value, who, ends=ends)


def test_the_former_value_returns() -> None:
    settings = Settings(START).with_(setting(2, ends=10.0))
    assert settings.in_force(9.9).value == 2
    assert settings.in_force(10.0).value == 5


def test_the_former_one_may_end_first() -> None:
    settings = Settings(START).with_(setting(3, ends=10.0)).with_(setting(2, ends=20.0))
    assert [settings.in_force(now).value for now in (5.0, 15.0, 25.0)] == [2, 2, 5]


def test_the_former_one_may_end_later() -> None:
    settings = Settings(START).with_(setting(3, ends=20.0)).with_(setting(2, ends=10.0))
    assert [settings.in_force(now).value for now in (5.0, 15.0, 25.0)] == [2, 3, 5]


def test_one_that_stays_ends_all_others() -> None:
    settings = Settings(START).with_(setting(3, ends=20.0)).with_(setting(1)).with_(setting(2, ends=10.0))
    assert [settings.in_force(now).value for now in (5.0, 15.0, 25.0)] == [2, 1, 1]


def test_what_ended_is_told_once() -> None:
    settings = Settings(START).with_(setting(3, ends=20.0)).with_(setting(2, ends=10.0))
    assert settings.end(5.0) is None
    ended = settings.end(10.0)
    assert ended is not None
    assert ended.value == 2
    assert settings.end(11.0) is None
    assert settings.next_end() == 20.0


def test_every_moment_at_which_it_may_change_by_itself_is_known() -> None:
    settings = Settings(START).with_(setting(3, ends=20.0)).with_(setting(2, ends=10.0))
    assert settings.ends() == [10.0, 20.0]
    assert settings.with_(setting(1)).ends() == []


def test_another_engine_takes_what_it_can() -> None:
    def fit(value: int) -> int:
        return min(value, 128)

    settings = Settings(START).with_(setting(200)).with_(setting(100, ends=10.0)).moved(64, fit)
    assert [settings.in_force(now).value for now in (5.0, 15.0)] == [100, 128]
    assert Settings(START).moved(64, fit).in_force(0.0).value == 64  # nobody had set it


@st.composite
def _logs(draw: st.DrawFn) -> list[tuple[float, int, float | None]]:
    """`(when, value, ends)`, by time."""
    log, now = [], 0.0
    for value in range(draw(st.integers(0, 12))):
        now += draw(st.integers(0, 20))
        span = draw(st.none() | st.integers(1, 60))
        log.append((now, value, None if span is None else now + span))
    return log


@given(_logs(), st.lists(st.integers(0, 300), max_size=20))
def test_the_value_in_force_is_that_of_the_youngest_that_has_not_ended(
    log: list[tuple[float, int, float | None]], looks: list[int]
) -> None:
    settings = Settings(Setting(-1))
    said: list[tuple[float, int, float | None]] = []
    pending = list(log)
    for now in sorted({*map(float, looks), *(when for when, _, _ in log)}):
        while pending and pending[0][0] <= now:
            when, value, ends = pending.pop(0)
            settings.end(when)
            settings = settings.with_(Setting(value, "maria", ends=ends))
            said.append((when, value, ends))
        expected = -1
        for _, value, ends in said:  # a plain reading of the log
            if ends is None or ends > now:
                expected = value
        assert settings.in_force(now).value == expected


@given(_logs())
def test_the_value_changes_by_itself_only_at_the_next_end(log: list[tuple[float, int, float | None]]) -> None:
    settings, now = Settings(Setting(-1)), 0.0
    for when, value, ends in log:
        now = when
        settings = settings.with_(Setting(value, "maria", ends=ends))
    while (end := settings.next_end()) is not None:
        before = settings.in_force(now).value
        assert settings.in_force(max(now, end - 1e-6)).value == before
        now = max(now, end)
        settings.end(now)
    assert settings.in_force(now) == settings.in_force(1e9)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(1, "1 s"), (90, "90 s"), (600, "10 m"), (599.9999999, "10 m"), (3600, "1 h"), (5400, "90 m"), (2.5, "2.5 s"),
     (604_800, "168 h"), (125, "125 s")],
)  # fmt: skip
def test_spans_are_told_as_an_operator_gives_them(seconds: float, words: str) -> None:
    assert span_in_words(seconds) == words
