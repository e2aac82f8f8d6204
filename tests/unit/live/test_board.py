"""The memory between the host and one engine core: two views of it in one process, and in two."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from engine_host.live import layout
from engine_host.live.board import Address, Board, CoreFacts
from engine_host.live.cell import Cell
from engine_host.live.core_board import CoreBoard, Taken
from engine_host.live.sample import REQUEST, BlockState, DialName, RequestState

DESCRIPTORS = Path("/proc/self/fd")
DIALS: Mapping[DialName, int] = {DialName.MAX_ACTIVE_SEQS: 4, DialName.SPECULATIVE_TOKENS: 2}


@pytest.fixture
def board() -> Iterator[Board]:
    made = Board(3)
    yield made
    made.close()


def core_of(board: Board, blocks: int = 50) -> CoreBoard:
    core = CoreBoard(board.address)
    core.open_for_samples(CoreFacts(pid=os.getpid(), blocks=blocks, ranges={DialName.MAX_ACTIVE_SEQS: (1, 8, 8)}))
    return core


def taken(blocks: int = 50, requests: int = 2, usage: float = 0.5) -> Taken:
    records = np.zeros(requests, REQUEST)
    records["id"] = [f"request-{n}" for n in range(requests)]
    records["state"] = RequestState.WAITING
    states = np.full(blocks, BlockState.ACTIVE, np.uint8)
    return Taken(time.time(), usage, states, records, {"capacity": requests}, 30, 20)


def test_a_sample_arrives_as_it_was_taken(board: Board) -> None:
    core = core_of(board)
    assert board.sample() is None
    core.publish(taken(), DIALS)
    sample = board.sample()
    assert sample is not None
    assert (sample.engine_index, sample.seq, sample.usage) == (3, 1, 0.5)
    assert sample.requests["id"].tolist() == [b"request-0", b"request-1"]
    assert sample.states.tolist() == [BlockState.ACTIVE] * 50
    assert sample.waiting_by_reason == {"capacity": 2}
    assert sample.dials == DIALS
    assert (sample.drafted_total, sample.accepted_total, sample.unlisted) == (30, 20, 0)
    assert abs(sample.at - time.time()) < 5


def test_the_newest_of_many_samples_is_read(board: Board) -> None:
    core = core_of(board)
    for n in range(1, 8):
        core.publish(taken(usage=n / 10), DIALS)
    sample = board.sample()
    assert sample is not None and (sample.seq, sample.usage) == (7, 0.7)
    assert board.sample() is sample, "one that has been read is not read again"


def test_more_requests_than_there_is_room_for_are_counted(board: Board) -> None:
    core = core_of(board)
    core.publish(taken(requests=layout.REQUESTS_MAX + 5), {})
    sample = board.sample()
    assert sample is not None
    assert (len(sample.requests), sample.unlisted) == (layout.REQUESTS_MAX, 5)


def test_a_torn_sample_is_passed_over_and_the_one_before_stays(board: Board) -> None:
    core = core_of(board)
    core.publish(taken(usage=0.1), DIALS)
    before = board.sample()
    core.publish(taken(usage=0.2), DIALS)
    size = layout.slot_size(50)
    board._memory[layout.SAMPLES_AT + 2 % 2 * size + 20] ^= 0xFF  # as if the core had got so far with the third
    assert board.sample() is before
    core.publish(taken(usage=0.3), DIALS)
    sample = board.sample()
    assert sample is not None and sample.usage == 0.3


@pytest.mark.parametrize("at", [0, 4, 8, 30])
def test_half_of_one_record_and_half_of_another_is_seen(board: Board, at: int) -> None:
    cell = Cell(board._memory, layout.FAULT_AT, layout.FAULT_SIZE)
    cell.write(b"x" * 40)
    board._memory[layout.FAULT_AT + at] ^= 1
    assert board.fault == ""
    cell.write(b"whole")
    assert board.fault == "whole"


def test_a_length_from_elsewhere_reads_nothing_beyond_the_cell(board: Board) -> None:
    struct.pack_into("<II", board._memory, layout.FAULT_AT, 2**31, 0)
    assert board.fault == ""


def test_what_does_not_fit_is_refused(board: Board) -> None:
    with pytest.raises(ValueError, match="2000 bytes do not fit into a cell of 1528"):
        Cell(board._memory, layout.FAULT_AT, layout.FAULT_SIZE).write(b"x" * 2_000)


def test_a_long_fault_is_cut(board: Board) -> None:
    core_of(board).tell_fault("é" * 5_000)
    assert board.fault.startswith("ééé")


def test_dials_wanted_reach_the_core_and_what_it_applied_comes_back(board: Board) -> None:
    core = core_of(board)
    assert (core.wanted_seq, core.wanted(), board.applied) == (0, None, (0, {}))
    assert board.want({DialName.MAX_ACTIVE_SEQS: 4}) == 1
    assert board.want({DialName.SPECULATIVE_TOKENS: 0}) == 2
    assert core.wanted_seq == 2
    assert core.wanted() == (2, {DialName.MAX_ACTIVE_SEQS: 4, DialName.SPECULATIVE_TOKENS: 0})
    core.acknowledge(2, DIALS)
    assert board.applied == (2, DIALS)


def step_at(core: CoreBoard, at: float) -> None:
    core.add_step(at, 0.01, 4, 24, 20, 12, 5, True)


def test_steps_are_read_as_written(board: Board) -> None:
    core = core_of(board)
    for n in range(10):
        step_at(core, float(n))
    [last] = board.steps(8.0)
    assert last.tolist() == (9.0, pytest.approx(0.01), 4, 24, 20, 12, 5, 1)
    assert board.steps(-1.0)["at"].tolist() == [float(n) for n in range(10)]


def test_of_more_steps_than_are_kept_the_newest_are_read_in_order(board: Board) -> None:
    core = core_of(board)
    total = 2 * layout.STEPS_KEPT + 7
    for n in range(total):
        step_at(core, float(n))
    found = board.steps(-1.0)["at"]
    # One less: the record after the last may be half written.
    assert found.tolist() == list(range(total - layout.STEPS_KEPT + 1, total))


def test_memory_of_somebody_else_is_refused(board: Board, tmp_path: Path) -> None:
    other = Board(0)
    with pytest.raises(ValueError, match="of another engine core"):
        CoreBoard(Address(board.address.path, other.address.token))
    other.close()
    with (tmp_path / "file").open("wb") as file, pytest.raises(ValueError, match="not memory of the host"):
        CoreBoard(Address(f"/proc/self/fd/{file.fileno()}", board.address.token))
    with pytest.raises(OSError):
        CoreBoard(Address("/proc/self/fd/9999", board.address.token))


def test_it_has_no_name_and_its_descriptor_is_given_back() -> None:
    before = descriptors()
    board = Board(0)
    core = core_of(board)
    core.publish(taken(), DIALS)
    kinds = {str((DESCRIPTORS / number).readlink()).split(":")[0] for number in descriptors() - before}
    core.close()
    board.close()
    board.close()
    assert kinds == {"/memfd"}, "and no file, which a killed process would leave behind"
    assert descriptors() == before


def descriptors() -> set[str]:
    """Those that this process has open, but for the one that reads the directory."""
    return {entry.name for entry in DESCRIPTORS.iterdir() if entry.exists()}


def test_who_still_looks_at_it_after_its_end_sees_the_last_of_it(board: Board) -> None:
    """A snapshot may be under way when an engine ends."""
    core = core_of(board)
    core.publish(taken(), DIALS)
    last = board.sample()
    step_at(core, 1.0)
    board.close()
    assert board.sample() is last
    assert (len(board.steps(0.0)), board.applied, board.fault) == (0, (0, {}), "the engine has ended")
    assert board.facts is not None and board.ranges


WRITER = """
    import os, sys, time
    import msgspec, numpy as np
    from engine_host.live.board import Address, CoreFacts
    from engine_host.live.core_board import CoreBoard, Taken
    from engine_host.live.sample import REQUEST

    core = CoreBoard(msgspec.json.decode(sys.argv[1], type=Address))
    core.open_for_samples(CoreFacts(pid=os.getpid(), blocks=60_000, ranges={}))
    n = 0
    while core.wanted_seq == 0:
        n = n % 200 + 1
        requests = np.zeros(n, REQUEST)
        requests["blocks"] = n
        core.publish(Taken(float(n), n / 1000, np.full(60_000, n, np.uint8), requests, {"capacity": n}, n, n), {})
        core.add_step(time.monotonic(), n / 1000, n, n, n, n, 5, True)
    core.acknowledge(core.wanted_seq, {})
    os.kill(os.getpid(), 9)
"""


def test_another_process_that_writes_as_fast_as_it_can_is_read_whole_or_not_at_all(board: Board) -> None:
    """And when it is killed, what it said last can still be read."""
    address = msgspec.json.encode(board.address).decode()
    root = str(Path(__file__).parents[3])
    writer = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(WRITER), address], env={**os.environ, "PYTHONPATH": root}
    )
    try:
        seen: set[int] = set()
        deadline = time.monotonic() + 30
        while len(seen) < 100 and time.monotonic() < deadline:
            if (sample := board.sample()) is not None:
                seen.add(sample.seq)
                n = int(sample.at)
                whole: Any = {n}
                assert len(sample.requests) == n and set(sample.requests["blocks"].tolist()) == whole
                assert set(np.unique(sample.states).tolist()) == whole and sample.usage == n / 1000
                assert sample.waiting_by_reason == {"capacity": n} and sample.drafted_total == n
            steps = board.steps(0.0)
            assert (np.diff(steps["at"]) >= 0).all()
            assert (steps["requests"] == steps["drafted"]).all()
        assert len(seen) >= 100
        asked = board.want({})
        assert writer.wait(10) == -9
        assert board.applied == (asked, {})
        assert board.sample() is not None
    finally:
        writer.kill()
        writer.wait()
