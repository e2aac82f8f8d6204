"""The memory shared with the host, from the engine core's side."""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from engine_host.live import layout
from engine_host.live.board import Address, CoreFacts, unpack_dials
from engine_host.live.cell import Cell, TornReadError
from engine_host.live.sample import REQUEST, WAITING_REASONS, DialName

_U64 = struct.Struct("<Q")


@dataclass(slots=True)
class Taken:
    """One look into the scheduler, to be published."""

    at: float
    usage: float
    states: npt.NDArray[np.uint8]
    requests: npt.NDArray[np.void]
    """`REQUEST`, all that there are, running ones first."""
    waiting_by_reason: Mapping[str, int]
    drafted_total: int
    accepted_total: int


class CoreBoard:
    """Raises `OSError` or `ValueError` when there is no such memory."""

    def __init__(self, address: Address) -> None:
        if not str(Path(address.path).readlink()).startswith(f"/memfd:{layout.MEMFD_NAME}"):
            raise ValueError(f"{address.path} is not memory of the host")
        fd = os.open(address.path, os.O_RDWR | os.O_CLOEXEC)
        try:
            self._fd = fd
            self._memory = mmap.mmap(fd, layout.FIXED_SIZE)
            if self._memory[: layout.TOKEN_SIZE].hex() != address.token:
                raise ValueError(f"{address.path} is the memory of another engine core")
        except BaseException:
            os.close(fd)
            raise
        self._words = memoryview(self._memory).cast("Q")
        self._step_count = 0
        self._sample_seq = 0
        self._blocks = 0

    def open_for_samples(self, facts: CoreFacts) -> None:
        """Make room, then tell the host that the scheduler is built. Raises `OSError`, and then a fault can still be
        told."""
        os.ftruncate(self._fd, layout.whole_size(facts.blocks))
        wider = mmap.mmap(self._fd, layout.whole_size(facts.blocks))
        self._words.release()
        self._memory.close()
        self._memory = wider
        self._words = memoryview(self._memory).cast("Q")
        self._blocks = facts.blocks
        Cell(self._memory, layout.FACTS_AT, layout.FACTS_SIZE).write(msgspec.json.encode(facts))

    def close(self) -> None:
        self._words.release()
        self._memory.close()
        os.close(self._fd)

    @property
    def wanted_seq(self) -> int:
        """Grows when the host wants other dials. Costs a tenth of a microsecond."""
        return self._words[layout.WANTED_SEQ_AT // 8]

    def wanted(self) -> tuple[int, Mapping[DialName, int]] | None:
        """`(number of the asking, dials)`; None while the host is writing."""
        try:
            content = Cell(self._memory, layout.WANTED_AT, layout.WANTED_SIZE).read()
        except TornReadError:
            return None
        return unpack_dials(content) if content else None

    def acknowledge(self, seq: int, in_force: Mapping[DialName, int]) -> None:
        content = layout.DIALS.pack(seq, *(in_force.get(name, layout.NO_DIAL) for name in layout.DIAL_ORDER))
        Cell(self._memory, layout.APPLIED_AT, layout.APPLIED_SIZE).write(content)

    def tell_fault(self, reason: str) -> None:
        Cell(self._memory, layout.FAULT_AT, layout.FAULT_SIZE).write(reason.encode()[: layout.FAULT_SIZE - 16])

    def add_step(
        self, at: float, took_s: float, requests: int, tokens: int, drafted: int, accepted: int, k: int, is_decode: bool
    ) -> None:
        """As `STEP`. Costs a microsecond."""
        count = self._step_count
        layout.STEP_STRUCT.pack_into(
            self._memory,
            layout.STEPS_AT + count % layout.STEPS_KEPT * layout.STEP_STRUCT.size,
            at,
            took_s,
            requests,
            tokens,
            drafted,
            accepted,
            k,
            is_decode,
        )
        self._step_count = self._words[layout.STEP_COUNT_AT // 8] = count + 1

    def publish(self, taken: Taken, in_force: Mapping[DialName, int]) -> None:
        """Into the slot that the host is not reading from."""
        listed = taken.requests[: layout.REQUESTS_MAX]
        seq = self._sample_seq + 1
        head = layout.SAMPLE_STRUCT.pack(
            seq,
            taken.at,
            taken.usage,
            len(listed),
            len(taken.requests),
            len(taken.states),
            *(taken.waiting_by_reason.get(reason, 0) for reason in WAITING_REASONS),
            *(in_force.get(name, layout.NO_DIAL) for name in layout.DIAL_ORDER),
            taken.drafted_total,
            taken.accepted_total,
        )
        assert listed.dtype == REQUEST and taken.states.dtype == np.uint8
        size = layout.slot_size(self._blocks)
        content = b"".join((head, listed.tobytes(), taken.states.tobytes()))
        Cell(self._memory, layout.SAMPLES_AT + seq % 2 * size, size).write(content)
        self._sample_seq = self._words[layout.SAMPLE_SEQ_AT // 8] = seq
