"""Numbers as an operator reads them."""

from __future__ import annotations

import math
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console import format as fmt

numbers = st.floats(allow_nan=False, allow_infinity=False, min_value=0, max_value=1e14)
FORMATTERS = (fmt.significant, fmt.factor, fmt.si, fmt.rate, fmt.percent, fmt.latency, fmt.duration, fmt.window)


@pytest.mark.parametrize("formatter", [*FORMATTERS, fmt.count, fmt.size])
def test_unknown_is_an_en_dash_and_never_a_zero(formatter):
    assert formatter(None).startswith(fmt.DASH)
    assert "0" not in formatter(None)


@pytest.mark.parametrize("formatter", FORMATTERS)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_unknown(formatter, value):
    assert formatter(value).startswith(fmt.DASH)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.001, "<0.01"), (0.05, "0.05"), (3.926, "3.93"), (9.996, "10.0"), (71.23, "71.2"), (99.96, "100"),
     (640.4, "640"), (-2.5, "-2.50")],
)  # fmt: skip
def test_three_significant_digits(value, text):
    assert fmt.significant(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (7.5, "7.50"), (999.4, "999"), (999.6, "1.00k"), (2_140, "2.14k"), (98_300, "98.3k"),
     (999_600, "1.00M"), (1.5e9, "1.50G"), (2e12, "2.00T")],
)  # fmt: skip
def test_large_numbers_get_a_letter_and_never_four_digits(value, text):
    assert fmt.si(value) == text


@pytest.mark.parametrize(
    ("fraction", "text"),
    [(0, "0 %"), (0.00001, "<0.01 %"), (0.0503, "5.03 %"), (0.684, "68.4 %"), (1.0, "100 %"), (0.99999, "100 %")],
)
def test_a_fraction_is_shown_as_percent(fraction, text):
    assert fmt.percent(fraction) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 ms"), (0.00085, "850 µs"), (0.0094, "9.40 ms"), (0.182, "182 ms"), (0.9996, "1.00 s"), (1.21, "1.21 s"),
     (34.52, "34.5 s"), (99.96, "1m40s"), (725, "12m05s")],
)  # fmt: skip
def test_a_latency_names_its_unit(seconds, text):
    assert fmt.latency(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (-3, "0 s"), (59.6, "1m00s"), (725, "12m05s"), (15_180, "4h13m"), (274_320, "3d04h")],
)
def test_a_duration_has_two_units(seconds, text):
    assert fmt.duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0 B"), (1023, "1023 B"), (1 << 30, "1.00 GiB"), (131 << 30, "131 GiB")]
)
def test_bytes_are_binary(value, text):
    assert fmt.size(value) == text


def test_used_and_total_share_a_unit():
    assert fmt.share(512 << 20, 141 << 30) == "0.50 of 141 GiB"
    assert fmt.share(80 << 30, 1128 << 30) == "80.0 of 1128 GiB"
    assert fmt.share(None, 141 << 30) == "– of 141 GiB"


@pytest.mark.parametrize(("seconds", "text"), [(10.0, "10 s"), (60.0, "1 min"), (300.0, "5 min"), (0.5, "0.5 s")])
def test_a_window_is_named(seconds, text):
    assert fmt.window(seconds) == text


@given(numbers)
def test_no_number_grows_beyond_its_column(value):
    assert len(fmt.si(value)) <= 6
    assert len(fmt.latency(value)) <= len("9.99 ms") or value > 864_000
    assert len(fmt.percent(min(value, 1.0))) <= 7


@given(numbers, numbers)
def test_a_larger_number_never_looks_smaller(a, b):
    """Read back with its letter, the text keeps the order."""
    low, high = sorted((a, b))
    assert _read(fmt.si(low)) <= _read(fmt.si(high)) * 1.000001


def _read(text: str) -> float:
    if text.startswith("<"):
        return 0.001
    factor = {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}.get(text[-1], 1.0)
    return float(text.rstrip("kMGT")) * factor


@given(st.floats(allow_nan=True, allow_infinity=True) | st.none(), st.integers(1, 100))
def test_a_bar_is_exactly_as_wide_as_asked(fraction, width):
    assert len(fmt.bar(fraction, width)) == width


def test_a_bar_tells_unknown_from_empty_and_little_from_none():
    assert fmt.bar(None, 4) == "····"
    assert fmt.bar(0.0, 4) == "░░░░"
    assert fmt.bar(0.001, 4) == "▌░░░"
    assert fmt.bar(0.5, 4) == "██░░"
    assert fmt.bar(1.7, 4) == "████"


@given(st.lists(st.floats(0, 1) | st.none(), max_size=80), st.integers(1, 8))
def test_a_chart_has_a_column_a_value_and_the_rows_asked_for(values, height):
    rows = fmt.chart(values, 1.0, height)
    assert [len(row) for row in rows] == [len(values)] * height


def test_a_strip_tells_unknown_from_zero():
    assert fmt.strip([None, 0.0, 0.5, 1.0], 1.0) == " ▁▄█"


def test_a_chart_stacks_full_rows_under_its_top():
    assert fmt.chart([0.25, 1.0], 1.0, 2) == [" █", "▄█"]


@pytest.mark.parametrize(("value", "shown"), [(-1.7e308, "▁"), (-0.5, "▁"), (1.7e308, "█")])
def test_a_chart_draws_what_is_out_of_its_range_at_its_edge(value, shown):
    assert fmt.strip([value], 0.5) == shown


def test_a_chart_of_zeros_draws_its_baseline():
    assert fmt.chart([0.0, 0.0], 0.0, 1) == ["▁▁"]


def test_a_bucket_shows_its_highest_value():
    assert fmt.bucketed([1, 5, 2, None, None, None], end_at=5.0, step_s=1.0, cell_s=3.0, width=2) == [5, None]


@given(st.lists(st.floats(0, 1), min_size=30, max_size=90), st.integers(0, 1000), st.integers(1, 12))
def test_cells_keep_their_values_as_time_goes_on(values, end, cell):
    """The property that makes a strip cheap: a new second changes the newest cell only, or moves all by one."""
    width = 10
    before = fmt.bucketed(values, float(end), 1.0, float(cell), width)
    after = fmt.bucketed([*values, 0.5], float(end + 1), 1.0, float(cell), width)
    moved = (end + 1) // cell - end // cell
    assert after[: width - 1] == (before[1:] if moved else before[: width - 1])


@given(st.text())
def test_nothing_a_terminal_would_obey_survives_cleaning(text):
    cleaned = fmt.clean(text)
    assert not any(unicodedata.category(c) in {"Cc", "Cf", "Cs"} for c in cleaned)
    assert len(cleaned) == len(text)


def test_an_escape_sequence_is_shown_as_text():
    assert fmt.clean("a\x1b[2Jb\nc") == "a�[2Jb c"


@pytest.mark.parametrize(
    ("number", "said"), [(0, "0 requests"), (1, "1 request"), (1234, "1,234 requests"), (None, "– requests")]
)
def test_a_count_agrees_with_its_noun(number, said):
    assert fmt.many(number, "request") == said
