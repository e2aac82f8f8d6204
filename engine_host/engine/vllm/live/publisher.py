"""The thread in the engine core that publishes: up to ten times a second while the scheduler works, once after, never
while it rests."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from engine_host.engine.vllm.live.capture import Capture, Overtaken
from engine_host.engine.vllm.live.dials import CoreDials
from engine_host.engine.vllm.live.steps import Steps
from engine_host.live.core_board import CoreBoard

_PERIOD_S = 0.1
_BUSY_SHARE = 0.02
"""Of the time, that looking may take of the interpreter that it shares with the scheduler: a look that takes 4 ms comes
five times a second."""


class Publisher:
    def __init__(
        self, capture: Capture, steps: Steps, dials: CoreDials, board: CoreBoard, on_fault: Callable[[Exception], None]
    ) -> None:
        self._capture, self._steps, self._dials, self._board = capture, steps, dials, board
        self._on_fault = on_fault
        self._ending = threading.Event()
        self.published = -1
        """The scheduler's `version` that has been published, or one before it."""
        self.looks, self.busy_s = 0, 0.0
        """Samples published, and the processor time that they took."""
        self._thread = threading.Thread(target=self._run, name="engine-host-live", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ending.set()

    def _run(self) -> None:
        try:
            rest_s = 0.0
            while not self._ending.wait(rest_s):
                rest_s = _PERIOD_S
                if (version := self._steps.version) == self.published:
                    continue
                began = time.thread_time()
                try:
                    taken = self._capture.take()
                except Overtaken:
                    continue
                self._board.publish(taken, self._dials.in_force)
                self.published = version
                took_s = time.thread_time() - began
                self.looks, self.busy_s = self.looks + 1, self.busy_s + took_s
                rest_s = max(_PERIOD_S, took_s / _BUSY_SHARE)
        except Exception as error:
            self._on_fault(error)
