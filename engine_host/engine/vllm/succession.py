"""What a retired AsyncLLM's API app still asks of it goes to its successor."""

from __future__ import annotations

import asyncio
from typing import Any


class Succession:
    """Replaces two methods of an AsyncLLM whose requests have been taken out of it.

    Answers under way hold on to the engine that they began with: they abort through it when their client hangs up, and
    a request may be between the app's door and the engine when the switch begins. All of that goes through these two
    methods, so no token passes through code of ours.
    """

    def __init__(self, llm: Any) -> None:
        self._successor: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        # Looked at even if nobody waits for it.
        self._successor.add_done_callback(lambda future: future.exception())

        async def add_request(*args: Any, **options: Any) -> Any:
            successor = await asyncio.shield(self._successor)
            return await successor.add_request(*args, **options)

        async def abort(request_id: Any, internal: bool = False) -> None:
            if self._successor.done() and self._successor.exception() is None:
                await self._successor.result().abort(request_id, internal=internal)
            else:
                llm_processor.abort_requests([request_id] if isinstance(request_id, str) else request_id, internal)

        llm_processor = llm.output_processor
        llm.add_request = add_request
        llm.abort = abort

    def pass_to(self, llm: Any) -> None:
        if not self._successor.done():
            self._successor.set_result(llm)

    def end(self, error: Exception) -> None:
        if not self._successor.done():
            self._successor.set_exception(error)
