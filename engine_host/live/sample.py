"""One look into a running scheduler: its blocks, its requests, its dials."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from engine_host.live.dial import DialName as DialName
from engine_host.live.dial import DialRange as DialRange


class BlockState(IntEnum):
    """Of one KV block, ordered by how much it is in use: a group of blocks is shaded by its sum."""

    FREE = 0
    CACHED = 1
    """Held by no request, but its content can still be hit."""
    ACTIVE = 2
    SHARED = 3
    """Held by more than one request."""


class RequestState(IntEnum):
    WAITING = 0
    """For room: a slot, blocks, or the step's token budget."""
    DEFERRED = 1
    """For something else: a grammar, a remote KV transfer, a LoRA slot."""
    PREEMPTED = 2
    """Was running, lost its blocks, waits to begin again."""
    RUNNING = 3


REQUEST = np.dtype(
    [
        ("id", "S96"),
        ("state", "u1"),
        ("priority", "i8"),  # a client's number: vLLM takes 64 bits
        ("arrived", "f8"),  # Unix time
        ("began", "f8"),  # Unix time of the step that first took it in; 0 while there was none
        ("preempted_at", "f8"),  # Unix time, while it waits to run again, as it was seen; else 0
        ("waited_again_s", "f8"),  # after earlier preemptions, until it ran again
        ("prompt_tokens", "u4"),
        ("generated_tokens", "u4"),
        ("computed_tokens", "u4"),  # with KV in blocks
        ("cached_tokens", "u4"),  # of the prompt, found in the prefix cache
        ("blocks", "u4"),
        ("preemptions", "u4"),
        ("drafted", "u8"),
        ("accepted", "u8"),
    ]
)
"""One unfinished request as the scheduler has it. Ids are UTF-8, cut after 96 bytes."""

STEP = np.dtype(
    [
        ("at", "f8"),  # monotonic seconds, of its end
        ("took_s", "f4"),  # since the end of the step before it
        ("requests", "u4"),
        ("tokens", "u4"),  # run through the model: of prompts, one of every request that decodes, and of its draft
        ("drafted", "u4"),  # draft tokens verified in it
        ("accepted", "u4"),  # of those
        ("k", "u2"),  # draft tokens made for the next one, a request
        ("is_decode", "u1"),  # no prompt token in it, and none in the one before
    ]
)
"""One scheduler step that ran the model, of steps that followed each other without a pause."""


@dataclass(frozen=True, slots=True)
class LiveSample:
    """All of one engine core at one moment."""

    engine_index: int
    seq: int
    at: float
    """Unix time."""
    usage: float
    """vLLM's own gauge of the KV cache, 0..1, at this moment."""
    states: npt.NDArray[np.uint8]
    """`BlockState` by block, [blocks]; vLLM's null block left out."""
    requests: npt.NDArray[Any]
    """`REQUEST` [unfinished requests], running ones first."""
    waiting_by_reason: Mapping[str, int]
    """Words of `WAITING_REASONS`; none is left out that is not 0."""
    dials: Mapping[DialName, int]
    """In force."""
    unlisted: int = 0
    """Waiting requests beyond those that `requests` has room for."""
    drafted_total: int = 0
    accepted_total: int = 0
    """Draft tokens of all requests since the engine started, the finished ones too."""

    @property
    def stored_tokens(self) -> int:
        """With KV in blocks, those of shared blocks once a request."""
        return int(self.requests["computed_tokens"].sum())


WAITING_REASONS = ("capacity", "preempted", "grammar", "remote KV", "LoRA slot", "streaming input", "other")
"""`capacity`: a slot, blocks, or the token budget of a step."""
