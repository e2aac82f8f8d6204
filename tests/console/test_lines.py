"""Lines: width in cells, cutting, columns."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from console.lines import Tone, beside, cells, clip, faded, fit, line, plain_text, spread

texts = st.text(st.characters(categories=("L", "N", "P", "Zs")), max_size=30)
rows = st.lists(st.tuples(texts, st.sampled_from(Tone)), max_size=5).map(lambda pieces: line(*pieces))


@given(rows, st.integers(1, 60))
def test_a_fitted_line_has_exactly_its_width(row, width):
    assert cells(fit(row, width)) == width


@given(rows, st.integers(1, 60))
def test_a_line_that_fits_keeps_its_text(row, width):
    if cells(row) <= width:
        assert plain_text(fit(row, width)).startswith(plain_text(row))


def test_a_cut_is_marked():
    assert plain_text(fit(line("running 37"), 8)) == "running…"
    assert clip("running 37", 8) == "running…"


def test_a_wide_character_counts_two_cells():
    assert cells(line("模型")) == 4
    assert cells(fit(line("模型模型"), 5)) == 5


def test_the_left_side_gives_way_to_the_right():
    assert plain_text(spread(line("a long name"), line("up 3d"), 12)) == "a lon… up 3d"


def test_columns_stand_side_by_side_though_one_is_longer():
    made = beside([line("a")], [line("b"), line("c")], 3, 8)
    assert [plain_text(row) for row in made] == ["a    b  ", "     c  "]


def test_empty_pieces_do_not_make_equal_lines_differ():
    assert line("a", ("", Tone.WARN)) == line("a")


def test_faded_lines_keep_their_text_and_lose_their_colour():
    [row] = faded([line(("FULL", Tone.WARN), " 99 %")])
    assert plain_text(row) == "FULL 99 %"
    assert {tone for _, tone in row} == {Tone.FAINT}
