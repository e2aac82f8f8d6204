"""Why an engine ended: from its own error, its log, and what the operating system says of its processes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from engine_host.engine import kv_shortage
from engine_host.engine.port import Engine, EngineStartError
from engine_host.protocol.snapshot import Failure

LAST_WORDS_S = 0.3
"""Between an engine's end and its last lines in the log: it writes through a buffer, the log is read in steps."""
_MAX_LINES = 12
"""Of an error: those nearest to the end."""
_MAX_LINE_CHARS = 400
"""Of a reason or error line: vLLM prints whole configurations, and every snapshot carries the failure."""


class EngineLog(Protocol):
    """What the lifecycle needs of the engine's log: lines since a mark, and which of them say why it failed."""

    def mark(self) -> int: ...
    def errors_since(self, mark: int) -> tuple[str | None, list[str]]:
        """`(root reason or None, the error lines)`."""

    def last_since(self, mark: int) -> list[str]:
        """The last lines, errors or not."""


async def of_failed_start(
    error: EngineStartError, log: EngineLog, mark: int, engine: Mapping[str, Any] | None = None
) -> EngineStartError:
    """The same error with the reason that the log gives. vLLM's own exception says "Engine core initialization failed.
    See root cause above."; the log has the cause. `engine`: the profile's table, for what to
    change in it."""
    await asyncio.sleep(LAST_WORDS_S)
    reason, lines = log.errors_since(mark)
    is_wrapper = "Engine core initialization failed" in error.reason or "root cause" in error.reason
    said = reason if is_wrapper and reason else error.reason
    return EngineStartError(
        said if engine is None else kv_shortage.explained(said, lines, engine),
        [*error.lines, *lines][-_MAX_LINES:],
        [] if lines else log.last_since(mark),
    )


async def of_death(engine: Engine, log: EngineLog, mark: int) -> Failure:
    """Of an engine that served until now."""
    await asyncio.sleep(LAST_WORDS_S)
    reason, lines = log.errors_since(mark)
    death = engine.death
    if death is not None and (death.by_signal or reason is None):
        reason = death.text
    return failure(reason or "it gave no reason", lines, log.last_since(mark))


def failure(reason: str, lines: Sequence[str] = (), last_lines: Sequence[str] = ()) -> Failure:
    """`last_lines` count only where there are no error lines."""
    return Failure(
        at=time.time(),
        reason=_cut(reason),
        lines=[_cut(line) for line in lines],
        last_lines=[] if lines else [_cut(line) for line in last_lines],
    )


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_LINE_CHARS else text[: _MAX_LINE_CHARS - 2] + " …"
