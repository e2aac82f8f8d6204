"""An engine's processes: vLLM's engine cores, how one of them ended, and the end of all that a start left behind."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Sequence
from typing import Any

import psutil

from engine_host import process_tree
from engine_host.engine.port import Death


def core_processes(llm: Any) -> Sequence[Any]:
    """The engine cores of an AsyncLLM, as `multiprocessing` knows them."""
    manager = getattr(llm.engine_core.resources, "engine_manager", None)
    return tuple(getattr(manager, "processes", ()))


def death_of(llm: Any) -> Death | None:
    """How its first ended engine core ended; None while all run."""
    for process in core_processes(llm):
        if (code := process.exitcode) is not None:
            how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
            return Death(f"the engine core (pid {process.pid}) {how}", by_signal=code < 0)
    return None


class StartedChildren:
    """What an engine started and is still there: children of ours that were not there before it, except
    multiprocessing's resource tracker, which serves the whole process. Workers of a core that was killed have
    become children of ours (`supervisor`)."""

    def __init__(self) -> None:
        self._before = {child.pid for child in psutil.Process().children()}

    def kill(self) -> None:
        """Blocks; call it in a thread."""
        mine: list[psutil.Process] = []
        for child in psutil.Process().children():
            if child.pid in self._before:
                continue
            with contextlib.suppress(psutil.Error):
                if any("resource_tracker" in part for part in child.cmdline()):
                    continue
                mine += [*child.children(recursive=True), child]
        process_tree.kill(mine)
