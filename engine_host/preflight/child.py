"""One child process for one question: a request on its standard input, an answer on its standard output.

The child is in a session of its own, and when its answer is there, when it is late or when nobody waits for it any
more, it is ended with whatever it started.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import engine_host

_NICENESS = 3
"""Half the weight of an engine's thread. The running engine comes first, but on a machine whose cores it keeps busy a
child that yields more (10 is a tenth) takes minutes to import vLLM, and a switch waits for it."""

_KILLED_WAIT_S = 5.0


class ChildError(Exception):
    """It gave no answer in time, or could not be started; the message says which."""


@dataclass(frozen=True)
class Ended:
    output: bytes
    log: list[str]
    """What it printed on standard error."""
    exit_code: int | None


async def ask_child(
    command: Sequence[str], request: bytes, deadline_s: float, environment: Mapping[str, str] | None = None
) -> Ended:
    """Raises `ChildError`, and `TimeoutError` after `deadline_s`; the child is gone in every case. `environment`: what
    the child gets, with our own settings laid over it; None: this process's."""
    try:
        process = await _started(command, _environment(os.environ if environment is None else environment))
    except OSError as fault:
        raise ChildError(f"{command[0]} cannot be started: {fault.strerror or fault}") from None
    _yield_to_the_engine(process.pid)
    try:
        async with asyncio.timeout(deadline_s):
            output, log = await process.communicate(request)
    finally:
        await _end(process)
    return Ended(output, log.decode(errors="replace").splitlines(), process.returncode)


async def _started(command: Sequence[str], environment: Mapping[str, str]) -> asyncio.subprocess.Process:
    """Cancelled while it starts, asyncio would kill the child alone: what that has started by then would live on."""
    starting = asyncio.create_task(
        asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
    )
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        await asyncio.shield(_end_started(starting))  # as in `_end`
        raise


async def _end_started(starting: asyncio.Task[asyncio.subprocess.Process]) -> None:
    with contextlib.suppress(OSError):  # then there is no child
        await _end(await starting)


def _yield_to_the_engine(pid: int) -> None:
    """Before it has its request, so that whatever it starts for it yields as well."""
    with contextlib.suppress(OSError):  # gone already
        os.setpriority(os.PRIO_PROCESS, pid, os.getpriority(os.PRIO_PROCESS, 0) + _NICENESS)


def _environment(given: Mapping[str, str]) -> dict[str, str]:
    root = str(Path(engine_host.__file__).parents[1])
    paths = [root, *filter(None, given.get("PYTHONPATH", "").split(os.pathsep))]
    return {
        **given,
        "PYTHONPATH": os.pathsep.join(paths),
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_NO_USAGE_STATS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        # torch asks the driver library whether there is a GPU, instead of opening a context on one that is full.
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
        "NO_COLOR": "1",
        # One thread: little is computed, and the cores belong to the engine that serves.
        "OMP_NUM_THREADS": "1",
    }


async def _end(process: asyncio.subprocess.Process) -> None:
    """vLLM inspects models in processes of its own: the whole group is ended."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    if process.returncode is None:
        # Shielded: a second cancellation must not leave a zombie.
        await asyncio.shield(asyncio.wait_for(process.wait(), _KILLED_WAIT_S))
