"""Values of the command line: what they stand for, what is refused."""

from __future__ import annotations

import argparse

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.argument_types import Span, dial_value, seen_limit, span_s


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90.0), ("10m", 600.0), ("1h", 3600.0), ("1h30m", 5400.0), ("2d", 172_800.0), ("0.5h", 1800.0),
     (" 10M ", 600.0)],
)  # fmt: skip
def test_spans(text: str, seconds: float) -> None:
    assert span_s(text) == seconds


@pytest.mark.parametrize("text", ["", "10", "m", "-5m", "10 m", "10min", "1h30", "1e3s", "ten"])
def test_no_spans(text: str) -> None:
    assert span_s(text) is None


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("max-inflight=64", ("max_inflight", 64)),
        ("request_rate=0.5", ("request_rate", 0.5)),
        ("request_rate=none", ("request_rate", None)),
        ("hold-deadline=2m", ("hold_deadline_s", 120.0)),
        ("pause=yes", ("paused", True)),
        ("auto=on", ("auto", "on")),
        ("request_rate=nan", ("request_rate", "nan")),  # for the host to refuse: as a number it would be sent as none
        ("request_rate=inf", ("request_rate", "inf")),
    ],
)
def test_what_was_seen_of_a_limit(text: str, seen: tuple[str, object]) -> None:
    assert seen_limit(text) == seen


@given(st.text(max_size=12))
def test_a_span_is_read_or_refused(text: str) -> None:
    try:
        assert 1.0 <= Span(1.0, 604_800.0)(text) <= 604_800.0
    except argparse.ArgumentTypeError as error:
        assert repr(text) in str(error)


@given(st.text(max_size=20))
def test_a_dial_is_read_or_refused(text: str) -> None:
    try:
        name, value = dial_value(text)
    except argparse.ArgumentTypeError:
        return
    assert name
    assert value is None or isinstance(value, int)
