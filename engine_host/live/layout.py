"""Where what stands in the memory that the host shares with one engine core. Both sides use this; neither locks.

One writer a part: the host writes what the dials should be, the core everything else. Whoever reads while the other
writes sees that by a checksum (`cell`), and reads again or goes without. Little endian, packed.
"""

from __future__ import annotations

import struct

from engine_host.live.sample import REQUEST, STEP, WAITING_REASONS, DialName

ENVIRONMENT = "ENGINE_HOST_LIVE_BOARDS"
"""What an engine core finds its memory by: JSON of `engine_host.live.board.Address`. Not part of vLLM's configuration,
which is hashed into the names of its compile caches."""
MEMFD_NAME = "engine-host-live"

TOKEN_SIZE = 16
TOKEN_AT = 0
"""At random: a process number on another machine, or one used again, leads to somebody else's memory."""
WANTED_SEQ_AT = 16
"""u64: grows when the host wants other dials. The one word that a scheduler step looks at."""
SAMPLE_SEQ_AT = 24
"""u64: of the newest sample; it stands in slot `seq % 2`."""
STEP_COUNT_AT = 32
"""u64: step records ever written; record n stands at place `n % STEPS_KEPT`."""

WANTED_AT, WANTED_SIZE = 64, 192
APPLIED_AT, APPLIED_SIZE = 256, 256
FAULT_AT, FAULT_SIZE = 512, 1_536
"""Why the core's part is off, in words; empty while it runs."""
FACTS_AT, FACTS_SIZE = 2_048, 2_048
"""JSON, once the scheduler is built: `engine_host.live.board.CoreFacts`."""

DIALS = struct.Struct("<Q3q")
"""Sequence number; the value of each `DialName` in its order, `NO_DIAL` where there is none."""
NO_DIAL = -1
DIAL_ORDER = tuple(DialName)

STEPS_AT = 4_096
STEPS_KEPT = 16_384
STEP_STRUCT = struct.Struct("<dfIIIIHB")
"""As `STEP`, packed ten times faster than numpy assigns."""
assert STEP_STRUCT.size == STEP.itemsize

SAMPLES_AT = STEPS_AT + (STEPS_KEPT * STEP.itemsize + 4_095) // 4_096 * 4_096
FIXED_SIZE = SAMPLES_AT
"""What the host makes; the core, which knows its number of blocks, makes room for samples behind it."""
SAMPLE_STRUCT = struct.Struct(f"<QddIII{len(WAITING_REASONS)}I3q2Q")
"""seq, Unix time, usage; requests here, requests there are, blocks; waiting by reason; dials in force; drafted and
accepted since the start. Behind it the `REQUEST` records, then a byte for every block."""
REQUESTS_MAX = 8_192
"""More waiting requests than that are counted, not listed. Room for them costs nothing until it is written to."""


def slot_size(blocks: int) -> int:
    """Of one sample with its checksum."""
    used = 8 + SAMPLE_STRUCT.size + REQUESTS_MAX * REQUEST.itemsize + blocks
    return (used + 4_095) // 4_096 * 4_096


def whole_size(blocks: int) -> int:
    return SAMPLES_AT + 2 * slot_size(blocks)
