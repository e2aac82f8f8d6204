"""Before an engine is built: whether its scheduler can be looked into, and the memory through which it will be."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from engine_host.engine.vllm.releases import unknown_release

if TYPE_CHECKING:  # the rest is loaded with the first engine: numpy takes a tenth of a second
    from engine_host.engine.vllm.live.cores import LiveCores
    from engine_host.live.board import Board

logger = logging.getLogger(__name__)

_CLASSES = "engine_host.engine.vllm.live.scheduler"


class Boards:
    """Of one engine, for one start."""

    def __init__(self) -> None:
        self._boards: list[Board] = []
        self._why_not = "its engine has not been built"

    def prepare(self, config: Any) -> None:
        """Have the engine of this `VllmConfig` load our scheduler, if it is one that we know. Never raises."""
        from engine_host.live.board import Board

        try:
            if (why_not := _why_not(config)) is not None:
                self._why_not = why_not
                return
            # vLLM's own would be this one. The wrong one works, and is slower.
            name = "SteeredAsyncScheduler" if config.scheduler_config.async_scheduling else "SteeredScheduler"
            for index in range(config.parallel_config.data_parallel_size):
                self._boards.append(Board(index))
            config.scheduler_config.scheduler_cls = f"{_CLASSES}.{name}"
        except Exception as error:
            logger.warning("the engine starts without a look into its scheduler", exc_info=error)
            self.close()
            self._why_not = f"it could not be prepared: {type(error).__name__}: {error}"

    @contextlib.contextmanager
    def in_environment(self) -> Iterator[None]:
        """Around the start of the engine's processes, which inherit it."""
        if not self._boards:
            yield
            return
        from engine_host.live import layout

        os.environ[layout.ENVIRONMENT] = msgspec.json.encode([board.address for board in self._boards]).decode()
        try:
            yield
        finally:
            os.environ.pop(layout.ENVIRONMENT, None)

    def found(self, llm: Any) -> LiveCores | str:
        """Once the engine is up: its scheduler, or why it cannot be looked into."""
        if not self._boards:
            return self._why_not
        for board in self._boards:
            if fault := board.fault:
                return fault
            if board.facts is None:
                return f"the scheduler of engine core {board.engine_index} has not found the memory that it shares"
        from engine_host.engine.vllm.live.cores import LiveCores

        return LiveCores(self._boards, llm)

    def close(self) -> None:
        self._why_not = "its engine has ended"
        boards, self._boards = self._boards, []
        for board in boards:
            board.close()


def _why_not(config: Any) -> str | None:
    if (unknown := unknown_release()) is not None:
        return f"the scheduler {unknown}"
    if (named := config.scheduler_config.scheduler_cls) is not None:
        name = named if isinstance(named, str) else named.__qualname__
        return f"the engine has a scheduler of its own, {name}"
    parallel = config.parallel_config
    if parallel.data_parallel_size != parallel.data_parallel_size_local:
        return "the engine has cores on other machines or in other hosts"
    if parallel.data_parallel_backend == "ray":
        return "Ray places the engine's cores, which share no memory with this host"
    return None
