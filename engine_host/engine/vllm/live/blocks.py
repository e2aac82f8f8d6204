"""The state of every KV block, kept up to date without walking all of them.

A walk through sixty thousand blocks takes some 5 ms of the interpreter that the scheduler shares, and drives what the
scheduler works with out of the processor's cache. So it is done once. After that only those blocks are read again that
can have changed: new ones of requests, all of requests that lost theirs, and a few more each time in turn. vLLM's own
count of free blocks says whether something was missed; then they are all walked through again.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, repeat
from operator import attrgetter, is_not, not_
from typing import Any

import numpy as np
import numpy.typing as npt

from engine_host.live.sample import BlockState

_CHUNK = 4_096
"""Blocks read at once, in about 0.4 ms: whoever waits for the interpreter meanwhile gets it then."""
_IN_TURN = 1_024
"""Read again at every look, changed or not: after six seconds there is none that was not."""
_REST_S = 0.00005

_ID, _HOLDERS, _HASH = attrgetter("block_id"), attrgetter("ref_cnt"), attrgetter("_block_hash")
_IS_NULL = attrgetter("is_null")

Table = dict[str, list[Any]]
"""Of one KV cache group: request -> its blocks. vLLM lengthens a list in place, and takes it out whole."""


class BlockStates:
    """Raises `AttributeError` for a pool that is built otherwise. Everything but `freeing` and `forget` is for the
    publisher's thread alone."""

    def __init__(self, manager: Any) -> None:
        pool = manager.block_pool
        self._pool = pool
        self._blocks: list[Any] = pool.blocks
        self._null: int = pool.null_block.block_id
        groups = manager.coordinator.single_type_managers
        self._tables: list[Table] = [group.req_to_blocks for group in groups]
        self._keeps_all = [_keeps_all(group) for group in groups]
        self._states = np.zeros(len(self._blocks), np.uint8)
        self._seen: list[dict[str, tuple[list[Any], int]]] = []
        self._freed: deque[list[Any]] = deque()
        self._pending: list[list[Any]] = []
        self._is_known = False
        self._next = 0
        self.walks = 0
        self._in_use()

    @property
    def total(self) -> int:
        """Without vLLM's null block."""
        return len(self._blocks) - 1

    def freeing(self, request_id: str) -> None:
        """A request gives its blocks back. From the scheduler's thread, before it does."""
        for table in self._tables:
            if (blocks := table.get(request_id)) is not None:
                self._freed.append(blocks)

    def forget(self) -> None:
        """Anything may have changed."""
        self._is_known = False

    def held(self, request_ids: list[str]) -> list[list[int]]:
        """How many blocks each request holds, by KV cache group."""
        return [
            list(map(_count_of(table, keeps_all), request_ids))
            for table, keeps_all in zip(self._tables, self._keeps_all, strict=True)
        ]

    def look(self, is_current: Callable[[], bool]) -> npt.NDArray[np.uint8] | None:
        """`BlockState`s by block; None when the scheduler has gone on meanwhile, which `is_current` tells."""
        # Without full attention a request lets go of blocks in the middle.
        if self._is_known and all(self._keeps_all):
            states = self._follow(is_current)
            if states is not None or not is_current():
                return states
        return self._walk(is_current)

    def _follow(self, is_current: Callable[[], bool]) -> npt.NDArray[np.uint8] | None:
        while self._freed:
            self._pending.append(self._freed.popleft())
        now = [_lengths(table) for table in self._tables]
        if not is_current():
            return None
        turn = self._blocks[self._next : self._next + _IN_TURN]
        changed = chain(turn, *self._pending, *chain.from_iterable(map(_changed, self._seen, now)))
        if not self._read(list(changed), is_current) or self._in_use() != self._held():
            return None
        self._seen, self._pending = now, []
        self._next = self._next + _IN_TURN if self._next + _IN_TURN < len(self._blocks) else 0
        return self._result()

    def _walk(self, is_current: Callable[[], bool]) -> npt.NDArray[np.uint8] | None:
        self._is_known = True  # unless it is forgotten meanwhile
        self._pending.clear()
        self._freed.clear()
        self.walks += 1
        self._seen = [_lengths(table) for table in self._tables]
        if not self._read(self._blocks, is_current):
            self._is_known = False
            return None
        return self._result()

    def _read(self, blocks: list[Any], is_current: Callable[[], bool]) -> bool:
        for at in range(0, len(blocks), _CHUNK):
            if at:
                time.sleep(_REST_S)
            if not is_current():
                return False
            chunk = blocks[at : at + _CHUNK]
            ids = np.fromiter(map(_ID, chunk), np.int64, len(chunk))
            self._states[ids] = _states(chunk)
        return is_current()

    def _result(self) -> npt.NDArray[np.uint8]:
        return np.delete(self._states, self._null)

    def _held(self) -> int:
        in_use = int(np.count_nonzero(self._states >= BlockState.ACTIVE))
        return in_use - int(self._states[self._null] >= BlockState.ACTIVE)

    def _in_use(self) -> int:
        return self.total - int(self._pool.get_num_free_blocks())


def _lengths(table: Table) -> dict[str, tuple[list[Any], int]]:
    lists = list(table.values())
    return dict(zip(list(table), zip(lists, map(len, lists), strict=True), strict=False))


def _changed(
    before: dict[str, tuple[list[Any], int]], now: dict[str, tuple[list[Any], int]]
) -> Iterable[Sequence[Any]]:
    """Runs of blocks that came to a request or left it."""
    for request_id, (blocks, length) in now.items():
        old, old_length = before.get(request_id, ((), 0))
        if old is not blocks:
            yield blocks
        elif length != old_length:
            yield blocks[min(length, old_length) :]
    for request_id, (blocks, _) in before.items():
        if now.get(request_id, ((), 0))[0] is not blocks:
            yield blocks


def _states(blocks: list[Any]) -> npt.NDArray[np.uint8]:
    """Two calls in C: the scheduler cannot go on within one."""
    holders = np.fromiter(map(_HOLDERS, blocks), np.int32, len(blocks))
    is_cached = np.fromiter(map(is_not, map(_HASH, blocks), repeat(None)), np.bool_, len(blocks))
    states = np.where(is_cached, np.uint8(BlockState.CACHED), np.uint8(BlockState.FREE))
    states[holders == 1] = BlockState.ACTIVE
    states[holders > 1] = BlockState.SHARED
    return states


def _keeps_all(group: Any) -> bool:
    """With full attention a request holds all its blocks; others put the null block where they let go of one."""
    return type(group).__name__ in ("FullAttentionManager", "CrossAttentionManager")


def _count_of(table: Table, keeps_all: bool) -> Callable[[str], int]:
    if keeps_all:
        return lambda request_id: len(table.get(request_id, ()))
    return lambda request_id: sum(map(not_, map(_IS_NULL, table.get(request_id, ()))))
