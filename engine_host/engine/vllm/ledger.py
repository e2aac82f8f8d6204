"""Which engine-core requests an AsyncLLM has sent, kept for sending them to another one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

_PRUNE_AT = 256
"""How many more requests than alive ones the ledger remembers before it forgets the finished."""


class Ledger:
    """Remembers the engine-core request of every unfinished request of one AsyncLLM.

    vLLM forgets it once it is sent; its sampling parameters are needed to send it again.
    """

    def __init__(self, llm: Any) -> None:
        self._llm = llm
        self._requests: dict[str, Any] = {}
        send: Callable[[Any], Awaitable[None]] = llm.engine_core.add_request_async

        async def remember_and_send(request: Any) -> None:
            self._requests[request.request_id] = request
            if len(self._requests) > len(self._alive) + _PRUNE_AT:
                self._requests = {key: kept for key, kept in self._requests.items() if key in self._alive}
            await send(request)

        llm.engine_core.add_request_async = remember_and_send

    @property
    def _alive(self) -> dict[str, Any]:
        states: dict[str, Any] = self._llm.output_processor.request_states
        return states

    def unfinished(self) -> list[tuple[str, Any, Any]]:
        """`(request id, front-end state, engine-core request or None)`, oldest first."""
        return [(key, state, self._requests.get(key)) for key, state in self._alive.items()]

    def remember(self, request: Any) -> None:
        self._requests[request.request_id] = request
