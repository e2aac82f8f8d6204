"""What becomes of a prompt before the gate admits it: counted when need be, cut, run in windows, refused.

The gate calls `prepare` with a request whose body it has read. What is refused here would be refused by vLLM with fewer
words, or wait in its queue for ever. A request that fits comes back as it is, and costs nothing: a prompt cannot have
more tokens than it has bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from engine_host.engine.port import AsgiApp, EngineFacts, Scope
from engine_host.profiles.throttle_table import Throttle


class AskedPrompt(Protocol):
    """What is read of a request here (`asked.Asked`)."""

    @property
    def scope(self) -> Scope: ...
    @property
    def body(self) -> dict[str, Any] | None:
        """Decoded JSON object, unchanged; None when the body is none."""


@dataclass(frozen=True, slots=True)
class Overlong:
    """Why a prompt cannot be answered."""

    counted_as: str
    """`too_long`: 400, whatever the client waits for; `too_large`: no KV cache of this engine holds it."""
    message: str
    status: int = 400
    code: str = "context_length_exceeded"


@dataclass(frozen=True, slots=True)
class Prepared:
    """A prompt that can be answered."""

    prompt_tokens: int | None = None
    """Of all its prompts together; None: not counted, since nobody needed it."""
    wrap: Callable[[AsgiApp], AsgiApp] | None = None
    """To be put around the app when the request is admitted: gives vLLM the body it shall see, adds response headers,
    runs windows one after the other. It is called with the request's own `scope`, `receive` and `send`, and takes no
    notice of what `receive` still has of the body. None: the request goes to the app as it came."""
    counted_as: str | None = None
    """`truncated` or `segmented`, where it was."""


class Preparation:
    """Decides it, by the profile's `[throttle]` table and what the engine that serves can take."""

    def __init__(self, facts: Callable[[], EngineFacts | None]) -> None:
        """`facts`: of the engine that serves now."""
        self._facts = facts
        self._table = Throttle()

    def set_table(self, table: Throttle) -> None:
        self._table = table

    async def prepare(self, app: AsgiApp, asked: AskedPrompt, *, is_count_needed: bool = False) -> Prepared | Overlong:
        """`app`: vLLM's, which also counts. `is_count_needed`: a prompt-token rate is in force. To be called anew when
        another app has taken its place before the request was admitted. May take as long as tokenizing the prompt takes;
        can be cancelled when the client has gone."""
        return Prepared()
