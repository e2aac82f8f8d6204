"""One consistent look at a scheduler's blocks and requests, from another thread, while it works.

Nothing stops the scheduler. Its main thread says when it changes something (`Steps.version`), and a look that was
overtaken is thrown away and taken again. What reads are calls that run in C, within which the scheduler cannot go on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from itertools import repeat
from operator import attrgetter, is_not, itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from engine_host.engine.vllm.live.blocks import BlockStates
from engine_host.engine.vllm.live.steps import Steps
from engine_host.engine.vllm.live.tally import Sums, Tally
from engine_host.live.core_board import Taken
from engine_host.live.sample import REQUEST, WAITING_REASONS, RequestState

_ATTEMPTS = 6
_WAIT_S = 0.0005
"""While the scheduler is in the middle of a change."""

_REQUEST_FIELDS = attrgetter(
    "request_id",
    "status",
    "priority",
    "arrival_time",
    "num_prompt_tokens",
    "num_computed_tokens",
    "num_preemptions",
    "_output_token_ids",
    "lora_request",
)
_REASONS = {
    "WAITING": "capacity",
    "PREEMPTED": "preempted",
    "WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR": "grammar",
    "WAITING_FOR_REMOTE_KVS": "remote KV",
    "WAITING_FOR_STREAMING_REQ": "streaming input",
}
_CAPACITY, _PREEMPTED = WAITING_REASONS.index("capacity"), WAITING_REASONS.index("preempted")
_LORA_SLOT, _OTHER = WAITING_REASONS.index("LoRA slot"), WAITING_REASONS.index("other")
_RUNNING, _FINISHED = len(WAITING_REASONS), len(WAITING_REASONS) + 1
"""What a request is to us, in one number: why it waits, or one of these."""
_STATE_OF_KIND = np.full(len(WAITING_REASONS) + 2, RequestState.DEFERRED, np.uint8)
_STATE_OF_KIND[[_CAPACITY, _PREEMPTED, _RUNNING]] = RequestState.WAITING, RequestState.PREEMPTED, RequestState.RUNNING
_LEAST, _MOST = np.iinfo(np.int64).min, np.iinfo(np.int64).max
"""Of a priority. Older releases take any number of a client, and an overflow would take our part out."""
_ID, _STATUS, _OUTPUT, _LORA = itemgetter(0), itemgetter(1), itemgetter(7), itemgetter(8)
_NOTHING = Sums(0)


class Overtaken(Exception):
    """The scheduler was too busy to be looked at; there is another time."""


class Capture:
    """Raises `AttributeError` for a scheduler that is built otherwise."""

    def __init__(self, scheduler: Any, blocks: BlockStates, steps: Steps, tally: Tally) -> None:
        self._scheduler, self._steps, self._tally = scheduler, steps, tally
        self._manager = scheduler.kv_cache_manager
        self._blocks = blocks
        self._skipped: Callable[[], Iterable[Any]] = _skipped_of(scheduler)
        self._by_status: npt.NDArray[np.int64] | None = None
        assert self._manager.usage is not None and scheduler.requests is not None

    def take(self) -> Taken:
        """Raises `Overtaken`."""
        whole = 0
        for _ in range(_ATTEMPTS):
            version, notes = self._steps.version, self._tally.pending
            if version % 2 == 0 and self._steps.version == version:
                whole = notes  # none of a step that is under way
            if version % 2 or (found := self._look(version)) is None:
                time.sleep(_WAIT_S)
                continue
            states, usage, requests, rows, lengths, held, skipped, notes = found
            self._tally.take(notes)
            return self._taken(states, usage, requests, rows, lengths, held, skipped)
        self._tally.take(whole)
        raise Overtaken

    def _look(self, version: int) -> tuple[Any, ...] | None:
        """Everything as it was at one moment; None when the scheduler went on meanwhile."""
        states = self._blocks.look(lambda: self._steps.version == version)
        if states is None:
            return None
        requests = list(self._scheduler.requests.values())
        rows = list(map(_REQUEST_FIELDS, requests))
        lengths = list(map(len, map(_OUTPUT, rows)))
        held = self._blocks.held(list(map(_ID, rows)))
        skipped = set(map(id, self._skipped()))
        usage = self._manager.usage
        notes = self._tally.pending
        if self._steps.version != version:
            return None
        return states, usage, requests, rows, lengths, held, skipped, notes

    def _taken(
        self,
        states: npt.NDArray[np.uint8],
        usage: float,
        requests: list[Any],
        rows: list[tuple[Any, ...]],
        lengths: list[int],
        held: list[list[int]],
        skipped: set[int],
    ) -> Taken:
        records = np.zeros(len(rows), REQUEST)
        waiting: dict[str, int] = {}
        if rows:
            self._fill(records, rows, lengths, held)
            statuses = np.fromiter(map(_STATUS, rows), np.int64, len(rows))
            kinds = self._kinds(rows[0][1])[statuses]
            if skipped:
                is_skipped = np.fromiter(map(skipped.__contains__, map(id, requests)), np.bool_, len(rows))
                has_lora = np.fromiter(map(is_not, map(_LORA, rows), repeat(None)), np.bool_, len(rows))
                for_something_else = is_skipped & (kinds == _CAPACITY)
                kinds[for_something_else] = np.where(has_lora, _LORA_SLOT, _OTHER)[for_something_else]
            records["state"] = _STATE_OF_KIND[kinds]
            self._fill_waits(records, rows)
            order = np.argsort(kinds != _RUNNING, kind="stable")
            # Of a finished one only its blocks are left, which another engine still reads.
            records = records[order][kinds[order] != _FINISHED]
            counts = np.bincount(kinds, minlength=len(_STATE_OF_KIND))
            waiting = {reason: int(n) for reason, n in zip(WAITING_REASONS, counts, strict=False) if n}
        tally = self._tally
        return Taken(time.time(), usage, states, records, waiting, tally.drafted, tally.accepted)

    def _fill(
        self, records: npt.NDArray[Any], rows: list[tuple[Any, ...]], lengths: list[int], held: list[list[int]]
    ) -> None:
        ids, _, priorities, arrivals, prompts, computed, preemptions, *_ = zip(*rows, strict=True)
        records["id"] = list(map(str.encode, ids))
        records["priority"] = [min(max(priority, _LEAST), _MOST) for priority in priorities]
        records["arrived"] = arrivals
        records["prompt_tokens"] = prompts
        records["generated_tokens"] = lengths
        records["computed_tokens"] = computed
        records["preemptions"] = preemptions
        records["blocks"] = np.sum(held, axis=0)
        by_request = self._tally.by_request
        sums = [by_request.get(request_id, _NOTHING) for request_id in ids]
        records["cached_tokens"] = [found.cached_tokens for found in sums]
        records["began"] = [found.began for found in sums]
        records["drafted"] = [found.drafted for found in sums]
        records["accepted"] = [found.accepted for found in sums]

    def _fill_waits(self, records: npt.NDArray[Any], rows: list[tuple[Any, ...]]) -> None:
        """Of those that were preempted: most were not."""
        now = time.time()
        for place in np.flatnonzero(records["preemptions"]).tolist():
            if (sums := self._tally.by_request.get(rows[place][0])) is not None:
                sums.seen(records["state"][place] == RequestState.PREEMPTED, now)
                records["preempted_at"][place] = sums.preempted_at
                records["waited_again_s"][place] = sums.waited_again_s

    def _kinds(self, one: Any) -> npt.NDArray[np.int64]:
        """By vLLM's number of a status, what it is to us; learned from the enumeration that `one` belongs to."""
        if self._by_status is None:
            kinds = {int(status): _kind(status.name) for status in one.__class__}
            self._by_status = np.full(max(kinds) + 1, _OTHER)
            self._by_status[list(kinds)] = list(kinds.values())
        return self._by_status


def _kind(status: str) -> int:
    if status.startswith("FINISHED"):
        return _FINISHED
    return _RUNNING if status == "RUNNING" else WAITING_REASONS.index(_REASONS.get(status, "other"))


def _skipped_of(scheduler: Any) -> Callable[[], Iterable[Any]]:
    """Waiting requests that the scheduler passed over, for something else than room."""
    if hasattr(scheduler, "deferred_waiting"):
        return lambda: list(scheduler.deferred_waiting)
    queue = scheduler.skipped_waiting
    # A priority queue's own iterator takes a copy apart, one by one.
    return lambda: list(getattr(queue, "_heap", queue))
