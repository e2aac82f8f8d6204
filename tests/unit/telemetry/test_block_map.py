"""The KV blocks in groups: every block in one of them, none twice."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_host.telemetry.block_map import block_map
from tests.unit.scripted_scheduler import block_states, live_sample, request_records


def test_blocks_are_counted_by_state_in_groups_of_equal_size() -> None:
    states = np.array([3, 2, 2, 1, 0, 0, 0], np.uint8)
    found = block_map([live_sample(states=states)], 4)
    assert found.blocks_per_cell == 2
    assert found.cells == [(0, 0, 1, 1), (0, 1, 1, 0), (2, 0, 0, 0), (1, 0, 0, 0)]


def test_the_cores_lie_one_after_the_other() -> None:
    cores = [live_sample(states=block_states(active=2)), live_sample(states=block_states(free=2), engine_index=1)]
    assert block_map(cores, 2).cells == [(0, 0, 2, 0), (2, 0, 0, 0)]


def test_who_holds_most_comes_first_and_who_holds_none_not_at_all() -> None:
    records = request_records(*({"id": f"r{n}", "blocks": n} for n in range(12)))
    holders = block_map([live_sample(records)], 8).holders
    assert [(one.id, one.blocks) for one in holders] == [(f"r{n}", n) for n in range(11, 3, -1)]
    assert block_map([live_sample(request_records({"id": "a"}))], 8).holders == []


def test_an_id_cut_in_the_middle_of_a_character_is_still_a_text() -> None:
    [holder] = block_map([live_sample(request_records({"id": "x" + "語" * 100, "blocks": 1}))], 8).holders
    assert holder.id == "x" + "語" * 31


@given(st.lists(st.integers(0, 3), min_size=1, max_size=500), st.integers(1, 600))
def test_every_block_is_in_one_cell(states: list[int], cells: int) -> None:
    found = block_map([live_sample(states=np.array(states, np.uint8))], cells)
    assert len(found.cells) <= cells
    assert [sum(column) for column in zip(*found.cells, strict=True)] == [states.count(state) for state in range(4)]
    assert all(sum(cell) == found.blocks_per_cell for cell in found.cells[:-1])


@pytest.mark.parametrize("cells", [1, 4_096])
def test_the_largest_pools_are_no_work(cells: int) -> None:
    states = block_states(free=100_000, active=100_000)
    assert sum(map(sum, block_map([live_sample(states=states)], cells).cells)) == 200_000
