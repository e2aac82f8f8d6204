"""The memory shared with one engine core, from the host's side: made here, read here, gone with its last user.

It has no name anywhere, so a killed host or core leaves nothing behind: it is a file in memory that the core opens
through this process's descriptor.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import secrets
import struct
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from engine_host.live import layout
from engine_host.live.cell import Cell, TornReadError
from engine_host.live.sample import REQUEST, STEP, WAITING_REASONS, DialName, DialRange, LiveSample

_ATTEMPTS = 4
"""At a torn read. The core writes ten times a second for a fraction of a millisecond."""
_U64 = struct.Struct("<Q")


class Address(msgspec.Struct, frozen=True):
    """Where an engine core finds its memory."""

    path: str
    token: str


class CoreFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a core tells of itself once its scheduler is built."""

    pid: int
    blocks: int
    """vLLM's null block left out."""
    ranges: Mapping[DialName, tuple[int, int, int]]
    """As `DialRange`."""
    missing: Mapping[DialName, str] = {}
    """Why a dial is not there, in words."""


class Board:
    """Of one engine core. Not for two threads at once."""

    def __init__(self, engine_index: int) -> None:
        self.engine_index = engine_index
        self._fd = os.memfd_create(layout.MEMFD_NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self._fd, layout.FIXED_SIZE)
        # A file that shrank under a reader would kill it.
        fcntl.fcntl(self._fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        self._memory = mmap.mmap(self._fd, layout.FIXED_SIZE)
        self._token = secrets.token_bytes(layout.TOKEN_SIZE)
        self._memory[: layout.TOKEN_SIZE] = self._token
        self._facts: CoreFacts | None = None
        self._wanted = 0
        self._newest: LiveSample | None = None

    @property
    def address(self) -> Address:
        return Address(f"/proc/{os.getpid()}/fd/{self._fd}", self._token.hex())

    def close(self) -> None:
        """The memory lives on in the core until it ends; here what was read last can be read on."""
        if not self._is_closed:
            self._memory.close()
            os.close(self._fd)
            self._fd = -1

    @property
    def _is_closed(self) -> bool:
        return self._fd < 0

    # --- what the core says ----------------------------------------------------------------------------------------

    @property
    def facts(self) -> CoreFacts | None:
        """None until the core's scheduler is built. From then on there are samples."""
        if self._facts is None and (content := self._read(layout.FACTS_AT, layout.FACTS_SIZE)):
            facts = msgspec.json.decode(content, type=CoreFacts)
            # The core has made room for samples before it says so.
            self._memory.close()
            self._memory = mmap.mmap(self._fd, layout.whole_size(facts.blocks))
            self._facts = facts
        return self._facts

    @property
    def ranges(self) -> Mapping[DialName, DialRange]:
        return {} if self.facts is None else {name: DialRange(*span) for name, span in self.facts.ranges.items()}

    @property
    def fault(self) -> str:
        """Why the core's part is off; empty while it runs."""
        if self._is_closed:
            return "the engine has ended"
        return self._read(layout.FAULT_AT, layout.FAULT_SIZE).decode(errors="replace")

    def sample(self) -> LiveSample | None:
        """The newest one; the one before when it cannot be read just now."""
        if self._is_closed or self.facts is None:
            return self._newest
        for _ in range(_ATTEMPTS):
            seq = self._word(layout.SAMPLE_SEQ_AT)
            if seq == 0 or (self._newest is not None and self._newest.seq == seq):
                break
            size = layout.slot_size(self.facts.blocks)
            content = self._read(layout.SAMPLES_AT + seq % 2 * size, size, attempts=1)
            if content and (found := _sample(content, self.engine_index)).seq >= seq:
                self._newest = found
                break
        return self._newest

    def steps(self, after: float) -> npt.NDArray[Any]:
        """`STEP` records of steps that ended after the monotonic second `after`, oldest first, as far as kept."""
        if self._is_closed:
            return np.empty(0, STEP)
        begin, end = layout.STEPS_AT, layout.STEPS_AT + layout.STEPS_KEPT * STEP.itemsize
        count = self._word(layout.STEP_COUNT_AT)
        ring = np.frombuffer(self._memory[begin:end], STEP)
        # Meanwhile more may have been written, and one is perhaps being written, each over the oldest.
        overwritten = self._word(layout.STEP_COUNT_AT) + 1 - layout.STEPS_KEPT
        found = ring[np.arange(max(0, count - layout.STEPS_KEPT, overwritten), count) % layout.STEPS_KEPT]
        new: npt.NDArray[Any] = found[found["at"] > after]
        return new

    # --- what the host says ----------------------------------------------------------------------------------------

    def want(self, values: Mapping[DialName, int]) -> int:
        """Ask for these dials, and for those left out as they are asked for already; returns the number of the asking,
        for `applied`."""
        asked = self._dials(layout.WANTED_AT, layout.WANTED_SIZE)
        before = asked[1] if asked is not None else {}
        self._wanted += 1
        wanted = {**before, **values}
        content = layout.DIALS.pack(self._wanted, *(wanted.get(name, layout.NO_DIAL) for name in layout.DIAL_ORDER))
        Cell(self._memory, layout.WANTED_AT, layout.WANTED_SIZE).write(content)
        _U64.pack_into(self._memory, layout.WANTED_SEQ_AT, self._wanted)
        return self._wanted

    @property
    def applied(self) -> tuple[int, Mapping[DialName, int]]:
        """`(number of the asking last applied, the dials in force)`; `(0, {})` before the core has said so."""
        return self._dials(layout.APPLIED_AT, layout.APPLIED_SIZE) or (0, {})

    def _dials(self, at: int, size: int) -> tuple[int, dict[DialName, int]] | None:
        if not (content := self._read(at, size)):
            return None
        return unpack_dials(content)

    def _word(self, at: int) -> int:
        return int(_U64.unpack_from(self._memory, at)[0])

    def _read(self, at: int, size: int, attempts: int = _ATTEMPTS) -> bytes:
        if self._is_closed:
            return b""
        cell = Cell(self._memory, at, size)
        for _ in range(attempts):
            try:
                return cell.read()
            except TornReadError:
                continue
        return b""


def unpack_dials(content: bytes) -> tuple[int, dict[DialName, int]]:
    seq, *values = layout.DIALS.unpack(content)
    pairs = zip(layout.DIAL_ORDER, values, strict=True)
    return seq, {name: value for name, value in pairs if value != layout.NO_DIAL}


def _sample(content: bytes, engine_index: int) -> LiveSample:
    head = layout.SAMPLE_STRUCT.unpack_from(content)
    seq, at, usage, listed, unfinished, blocks = head[:6]
    waiting = head[6 : 6 + len(WAITING_REASONS)]
    *dials, drafted, accepted = head[6 + len(WAITING_REASONS) :]
    begin = layout.SAMPLE_STRUCT.size
    return LiveSample(
        engine_index=engine_index,
        seq=seq,
        at=at,
        usage=usage,
        states=np.frombuffer(content, np.uint8, blocks, begin + listed * REQUEST.itemsize),
        requests=np.frombuffer(content, REQUEST, listed, begin),
        waiting_by_reason={reason: n for reason, n in zip(WAITING_REASONS, waiting, strict=True) if n},
        dials={name: value for name, value in zip(layout.DIAL_ORDER, dials, strict=True) if value != layout.NO_DIAL},
        unlisted=unfinished - listed,
        drafted_total=drafted,
        accepted_total=accepted,
    )
