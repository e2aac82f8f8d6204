"""Our part of a scheduler, inside the engine core: put together here, and taken out again at its first mistake.

vLLM calls it at every step, so nothing that goes wrong in it may reach vLLM: it is caught, told to the host as the
reason why there is nothing to see any more, and the dials go back to where the engine started.
"""

from __future__ import annotations

import contextlib
import logging
import os
from typing import Any

import msgspec

from engine_host.engine.vllm.live.blocks import BlockStates
from engine_host.engine.vllm.live.capture import Capture
from engine_host.engine.vllm.live.dials import CoreDials, as_wire
from engine_host.engine.vllm.live.publisher import Publisher
from engine_host.engine.vllm.live.steps import Steps
from engine_host.engine.vllm.live.tally import Gone, Tally
from engine_host.live import layout
from engine_host.live.board import Address, CoreFacts
from engine_host.live.core_board import CoreBoard

logger = logging.getLogger(__name__)


class Inside:
    """Every method is called by `steered` on the core's main thread, and may raise if it does not say otherwise."""

    def __init__(self, scheduler: Any, board: CoreBoard) -> None:
        self._board = board
        self._fault: Exception | None = None
        tally = Tally(scheduler.num_sampled_tokens_per_step, board.add_step)
        self._tally = tally
        self.steps = Steps(scheduler, tally)
        # The steps' own, without another call between.
        self.after_schedule = self.steps.after_schedule
        self.before_update = self.steps.before_update
        self.after_update = self.steps.after_update
        self._blocks = BlockStates(scheduler.kv_cache_manager)
        capture = Capture(scheduler, self._blocks, self.steps, tally)
        self.dials = CoreDials(scheduler, board)
        self._publisher = Publisher(capture, self.steps, self.dials, board, self._on_publisher_fault)
        board.open_for_samples(
            CoreFacts(
                pid=os.getpid(),
                blocks=self._blocks.total,
                ranges=as_wire(self.dials.ranges),
                missing=self.dials.missing,
            )
        )
        self._publisher.start()

    def begin(self) -> bool:
        """The scheduler begins to change things; False: it was at it already."""
        if self.steps.version % 2:
            return False
        self.steps.version += 1
        return True

    def end(self) -> None:
        self.steps.version += 1

    def before_schedule(self) -> None:
        self.steps.version += 1
        if self._fault is not None:
            raise self._fault
        self.dials.look()

    def ends(self, request_id: str) -> None:
        """Before its blocks are given back."""
        self._blocks.freeing(request_id)
        self._tally.note(Gone(request_id))

    def has_reset(self) -> None:
        self._blocks.forget()
        self.steps.has_reset()

    def rests(self) -> None:
        """The scheduler has nothing to do."""
        if self._fault is not None:
            raise self._fault
        self.steps.pause()
        self.dials.look()

    def turn_off(self, error: Exception) -> None:
        """Never raises."""
        try:
            logger.error("the scheduler goes on without its live part", exc_info=error)
            self._publisher.stop()
            self.steps.leave()
            self.dials.restore()
            self._board.tell_fault(in_words(error))
        except Exception:
            logger.exception("the live scheduler could not be turned off in order")

    def stop(self) -> None:
        self._publisher.stop()

    def _on_publisher_fault(self, error: Exception) -> None:
        """In its thread. The dials are turned on the main thread alone: back at the next step."""
        self._fault = error
        self._board.tell_fault(in_words(error))


def enter(scheduler: Any) -> Inside | None:
    """None where there is no host that wants to know, and, told to the host, where this scheduler is built otherwise
    than is known. Never raises."""
    board: CoreBoard | None = None
    try:
        addresses = msgspec.json.decode(os.environ[layout.ENVIRONMENT], type=list[Address])
        board = CoreBoard(addresses[scheduler.vllm_config.parallel_config.data_parallel_index])
        return Inside(scheduler, board)
    except Exception as error:
        logger.warning("the scheduler runs without its live part", exc_info=error)
        if board is not None:
            with contextlib.suppress(Exception):
                board.tell_fault(in_words(error))
                board.close()
        return None


def in_words(error: Exception) -> str:
    if isinstance(error, AttributeError):
        return f"this vLLM's scheduler is built otherwise than is known: {error}"
    return f"the part inside the scheduler failed: {type(error).__name__}: {error}"
