"""An engine's processes: vLLM's engine cores, how one of them ended, and the end of all that a start left behind."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import signal
from collections.abc import Sequence
from typing import Any

import psutil

from engine_host import process_tree
from engine_host.engine.port import Death
from engine_host.engine.vllm.shared_memory import SharedMemory

_LOOK_S = 0.1


def core_processes(llm: Any) -> Sequence[Any]:
    """The engine cores of an AsyncLLM, as `multiprocessing` knows them."""
    manager = getattr(llm.engine_core.resources, "engine_manager", None)
    return tuple(getattr(manager, "processes", ()))


def death_of(llm: Any) -> Death | None:
    """How an engine core ended; None while all run. Of several the one that vLLM has not ended itself: by SIGTERM."""
    ended = [process for process in core_processes(llm) if process.exitcode is not None]
    by_itself = [process for process in ended if process.exitcode != -signal.SIGTERM]
    return next((_death(process) for process in by_itself or ended), None)


def has_lost_one_of_several(llm: Any) -> bool:
    """vLLM, before it says that such an engine is dead, gives the other cores seconds to end; meanwhile it takes
    requests, and nobody answers them."""
    processes = core_processes(llm)
    return len(processes) > 1 and any(process.exitcode is not None for process in processes)


def _death(process: Any) -> Death | None:
    if (code := process.exitcode) is None:
        return None
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    return Death(f"the engine core (pid {process.pid}) {how}", by_signal=code < 0)


class CoresAtStart:
    """Sees how the first core ended of an engine whose start fails: vLLM forgets its processes then, and its error
    names none of them."""

    def __init__(self) -> None:
        self._seen: dict[int | None, Any] = {}
        self.death: Death | None = None

    @property
    def pids(self) -> set[int | None]:
        return set(self._seen)

    async def watch(self) -> None:
        """Until cancelled."""
        others = {process.pid for process in multiprocessing.active_children()}
        while True:
            self._seen |= {p.pid: p for p in multiprocessing.active_children() if p.pid not in others}
            self.look()
            await asyncio.sleep(_LOOK_S)

    def look(self) -> None:
        """A death by SIGTERM is none: that is vLLM's own way to end the others."""
        for process in self._seen.values():
            if self.death is None and process.exitcode != -signal.SIGTERM:
                self.death = _death(process)


def keeps_something(llm: Any) -> bool:
    """Whether an engine has to end by itself, however long that takes: what it hands to other programs (KV cache,
    encoder cache) must get there, and workers on other machines are no children of ours."""
    config = llm.vllm_config
    transfers = (getattr(config, name, None) for name in ("kv_transfer_config", "ec_transfer_config"))
    backend = getattr(config.parallel_config, "distributed_executor_backend", None)
    return any(transfer is not None for transfer in transfers) or "ray" in str(backend)


class StartedChildren:
    """What one engine's start made of this process's children, however many engines live beside it.

    Until `settled`, every child that was not there before counts as this engine's: a start that is abandoned tells
    nobody what it made. From then on only what it had by then, and what came of that: children that appear later are
    another engine's. Never counted: those in a session of their own, in which the preflight's checks run, at any time;
    and multiprocessing's resource tracker, which serves the whole process.
    """

    def __init__(self) -> None:
        self._before = set(psutil.Process().children())
        self._mine: list[psutil.Process] | None = None
        self._shared_memory = SharedMemory()

    def settled(self) -> None:
        """The start is over. Also remembers the children's children: when a core is killed, its workers become children
        of ours (`supervisor`), and nothing else would tell whose they were."""
        self._mine = _with_descendants(self._appeared())
        self._shared_memory.note(self._mine)

    def kill(self) -> None:
        """Also removes the shared memory that they leave. Blocks; call it in a thread."""
        mine = _with_descendants(self._appeared() if self._mine is None else self._mine)
        self._shared_memory.note(mine)
        process_tree.kill(mine)
        self._shared_memory.remove()

    def _appeared(self) -> list[psutil.Process]:
        children = psutil.Process().children()
        return [child for child in children if child not in self._before and _may_be_an_engines(child)]


def _may_be_an_engines(child: psutil.Process) -> bool:
    try:
        is_in_our_session = os.getsid(child.pid) == os.getsid(0)
        return is_in_our_session and not process_tree.is_resource_tracker(child)
    except OSError:
        return False  # gone


def _with_descendants(processes: Sequence[psutil.Process]) -> list[psutil.Process]:
    """Innermost first, so that none is adopted by us before it is ended."""
    found: list[psutil.Process] = []
    for process in processes:
        with contextlib.suppress(psutil.Error):
            found += process.children(recursive=True)[::-1]
        found.append(process)
    return list(dict.fromkeys(found))
