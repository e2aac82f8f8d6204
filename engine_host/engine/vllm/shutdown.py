"""How an AsyncLLM is ended. `shut_down` and `retire` block: they are for a thread."""

from __future__ import annotations

import asyncio
from typing import Any

CLEAR_S = 1.0
"""What an engine gets to end by itself that keeps nothing beyond its life. Its core would take 4 to 10 s, most of it to
take apart the interpreters of its workers and then its own; what these hold is memory, which the system takes back, and
shared memory and sockets, which we remove (`core_processes`, `scratch_dir`)."""


def end_late(building: asyncio.Task[tuple[Any, Any]]) -> None:
    """What an abandoned build came to after all; mostly nothing, since it asks before it starts processes."""
    if not building.cancelled() and building.exception() is None:
        llm = building.result()[1]
        asyncio.get_running_loop().run_in_executor(None, shut_down, llm, CLEAR_S)


def shut_down(llm: Any, timeout_s: float) -> None:
    """Its cores and all that makes prompts into tokens."""
    llm.shutdown(timeout_s)


def retire(llm: Any, timeout_s: float) -> None:
    """End its cores and no more: its app still makes prompts into tokens, in threads that its shutdown ends."""
    llm.engine_core.shutdown(timeout=timeout_s)
