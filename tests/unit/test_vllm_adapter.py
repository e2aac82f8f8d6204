"""The adapter before it has touched vLLM."""

from __future__ import annotations

import asyncio
import subprocess
import sys

from engine_host.engine.port import EngineArguments
from engine_host.engine.vllm.adapter import VllmEngine


def test_an_engine_stopped_before_its_start_ran_ends_nobody_elses_process() -> None:
    """A cancelled switch stops the new engine at once; the engine beside it is a child of the same host."""
    beside = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        asyncio.run(VllmEngine(EngineArguments(engine={}, server={}), lambda names: None).stop(0.0))
        assert beside.poll() is None
    finally:
        beside.kill()
        beside.wait()
