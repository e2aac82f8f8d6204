"""The dials of vLLM's scheduler: which attribute each turns, in which release, and how far.

In the engine core, on its main thread alone: vLLM asserts at the end of a step against the limits that it began with.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine_host.live.core_board import CoreBoard
from engine_host.live.sample import DialName, DialRange

_FOLLOW_K = ("ngram", "eagle", "eagle3", "mtp", "draft_model", "dflash")
"""Methods whose part in vLLM's first model runner drafts as many tokens as it is told to, as vLLM 0.33 has it; others
look away or assert that it is what they were started with. The second runner cuts every method's drafts itself."""


class CoreDials:
    """Raises `AttributeError` for a scheduler that is built otherwise."""

    def __init__(self, scheduler: Any, board: CoreBoard) -> None:
        self._scheduler, self._board = scheduler, board
        self._seen = 0
        # Newer releases admit up to one limit and have slots for another; older ones have the slots alone.
        self._has_admission = hasattr(scheduler, "max_num_active_reqs")
        self._lookup: list[int] | None = scheduler.dynamic_sd_lookup
        self.missing: dict[DialName, str] = {}
        self.ranges = {
            DialName.MAX_ACTIVE_SEQS: _sequences(scheduler, self._has_admission),
            DialName.MAX_SCHEDULED_TOKENS: _tokens(scheduler),
        }
        if k := scheduler.num_spec_tokens:
            if why_not := _why_k_is_fixed(scheduler):
                self.missing[DialName.SPECULATIVE_TOKENS] = why_not
            else:
                self.ranges[DialName.SPECULATIVE_TOKENS] = DialRange(0, k, k)
        self.in_force: dict[DialName, int] = {name: span.start for name, span in self.ranges.items()}
        self._slots = self.ranges[DialName.MAX_ACTIVE_SEQS].start
        """Where there are slots alone: how many to hold back to."""
        board.acknowledge(0, self.in_force)

    def look(self) -> None:
        """Apply what the host wants, if it wants something new. Before a step, and while there is none."""
        if self._board.wanted_seq != self._seen:
            self._apply_wanted()
        if not self._has_admission:
            # Those that run already go on, and vLLM asserts that there are slots for them.
            self._scheduler.max_num_running_reqs = max(self._slots, len(self._scheduler.running))

    def _apply_wanted(self) -> None:
        wanted = self._board.wanted()
        if wanted is None:
            return  # the host is writing: at the next step
        seq, values = wanted
        for name, value in values.items():
            if (span := self.ranges.get(name)) is not None and span.low <= value <= span.high:
                self._apply(name, value)
        self._seen = seq
        self._board.acknowledge(seq, self.in_force)

    def restore(self) -> None:
        """What the engine was started with: nobody is left to turn them back."""
        for name, span in self.ranges.items():
            self._apply(name, span.start)
        if not self._has_admission:
            self._scheduler.max_num_running_reqs = max(self._slots, len(self._scheduler.running))

    def _apply(self, name: DialName, value: int) -> None:
        scheduler = self._scheduler
        if name is DialName.MAX_SCHEDULED_TOKENS:
            scheduler.max_num_scheduled_tokens = value
        elif name is DialName.SPECULATIVE_TOKENS:
            # At full K as vLLM would have it without us: padded to uniform batches, or by the profile's own schedule.
            is_full = value == self.ranges[name].start
            scheduler.dynamic_sd_lookup = (
                self._lookup if is_full else [value] * (scheduler.scheduler_config.max_num_seqs + 1)
            )
        elif self._has_admission:
            scheduler.max_num_active_reqs = value
        else:
            self._slots = value
        self.in_force[name] = value


def as_wire(ranges: Mapping[DialName, DialRange]) -> dict[DialName, tuple[int, int, int]]:
    return {name: (span.low, span.high, span.start) for name, span in ranges.items()}


def _why_k_is_fixed(scheduler: Any) -> str | None:
    config = scheduler.vllm_config
    if config.parallel_config.data_parallel_size > 1:
        return "with data parallelism vLLM wants the same K in every engine core at every step"
    method = str(config.speculative_config.method)
    if not scheduler.use_v2_model_runner and method not in _FOLLOW_K:
        return f"the method {method} drafts the same number of tokens at every step"
    return None


def _sequences(scheduler: Any, has_admission: bool) -> DialRange:
    start = scheduler.max_num_active_reqs if has_admission else scheduler.max_num_running_reqs
    return DialRange(1, scheduler.max_num_running_reqs, start)


def _tokens(scheduler: Any) -> DialRange:
    """Never so low that a request could no longer be scheduled at all: a prompt that cannot be cut into chunks, a token
    and its draft for every request that runs (vLLM's own rule, without the draft), or a step of a Mamba block."""
    start = scheduler.max_num_scheduled_tokens
    config = scheduler.scheduler_config
    low = max(config.max_num_seqs, 1 + scheduler.num_spec_tokens + getattr(scheduler, "num_prefill_lookahead", 0))
    if not config.enable_chunked_prefill:
        low = max(low, scheduler.max_model_len)
    if scheduler.need_mamba_block_aligned_split:
        low = max(low, scheduler.block_size)
    if getattr(config, "disable_chunked_mm_input", False) and scheduler.max_num_encoder_input_tokens:
        low = start
    return DialRange(min(low, start), start, start)
