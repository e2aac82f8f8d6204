"""Faults for real engines: vLLM loads a scheduler class by name, and these fail where a test wants it."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from vllm.v1.core.sched.scheduler import Scheduler


class OutOfMemory(Scheduler):  # type: ignore[misc]
    def __init__(self, *args: Any, **options: Any) -> None:
        raise RuntimeError("CUDA out of memory. Tried to allocate 20.00 GiB")


class DiesWhileLoading(Scheduler):  # type: ignore[misc]
    def __init__(self, *args: Any, **options: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class Hangs(Scheduler):  # type: ignore[misc]
    def __init__(self, *args: Any, **options: Any) -> None:
        time.sleep(3600)


class FailsAtFirstToken(Scheduler):  # type: ignore[misc]
    def schedule(self, *args: Any, **options: Any) -> Any:
        if self.waiting:
            raise RuntimeError("this scheduler cannot schedule")
        return super().schedule(*args, **options)
