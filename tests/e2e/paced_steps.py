"""Engines whose steps take as long as a test wants: what has to be in flight then is, however fast the machine.

A plugin of vLLM. Its engine core reads the pace from a file at every step, so that a test can slow an engine down for
as long as it looks, and no longer.
"""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests import vllm_plugin

ENVIRONMENT = "PACED_STEPS_FILE"


@contextlib.contextmanager
def offered(home: Path) -> Iterator[None]:
    """For every engine that is started meanwhile and has a file of its own in its environment."""
    with vllm_plugin.offered(home, "paced-steps", f"{__name__}:install"):
        yield


@contextlib.contextmanager
def slow(file: Path, step_s: float) -> Iterator[None]:
    """From one step to the next it takes at least so many seconds."""
    _write(file, step_s)
    try:
        yield
    finally:
        _write(file, 0.0)


def _write(file: Path, step_s: float) -> None:
    new = file.with_suffix(".new")
    new.write_text(str(step_s))
    new.replace(file)


def install() -> None:
    """Called by vLLM in each of its processes."""
    if (name := os.environ.get(ENVIRONMENT)) is None:
        return
    from vllm.v1.core.sched.scheduler import Scheduler

    file, schedule, last = Path(name), Scheduler.schedule, 0.0

    @functools.wraps(schedule)
    def paced(self: Any, *arguments: Any, **options: Any) -> Any:
        nonlocal last
        with contextlib.suppress(FileNotFoundError):
            time.sleep(max(0.0, last + float(file.read_text()) - time.monotonic()))
        last = time.monotonic()
        return schedule(self, *arguments, **options)

    Scheduler.schedule = paced
