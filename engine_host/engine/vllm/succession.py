"""What a retired AsyncLLM's API app still asks of it goes to its successor.

Answers under way hold on to the engine that they began with: they abort through it when their client hangs up; and a
request may be on its way from the app's door to the engine when the switch begins, for as long as a slow client takes
to send it. So a retired engine goes on looking alive to its app, and what reaches it waits for the successor. No token
passes through code of ours.
"""

from __future__ import annotations

import asyncio
from functools import cache
from typing import Any


@cache
def succeedable(llm_class: type[Any]) -> type[Any]:
    """The same AsyncLLM, whose app sees no dead engine once its requests have been handed over."""

    class SucceedableLLM(llm_class):  # type: ignore[misc]
        is_retired = False

        @property
        def errored(self) -> bool:
            return not self.is_retired and bool(super().errored)

    return SucceedableLLM


class Succession:
    """Replaces two methods of a `succeedable` AsyncLLM whose requests have been taken out of it."""

    def __init__(self, llm: Any) -> None:
        self._successor: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        # Looked at even if nobody waits for it.
        self._successor.add_done_callback(lambda future: future.exception())
        self.given_up: set[str] = set()
        """Requests whose clients hung up while there was no successor to tell."""

        async def add_request(*args: Any, **options: Any) -> Any:
            successor = await asyncio.shield(self._successor)
            return await successor.add_request(*args, **options)

        async def abort(request_id: Any, internal: bool = False) -> None:
            if not self._successor.done():
                self.given_up |= {request_id} if isinstance(request_id, str) else set(request_id)
            elif self._successor.exception() is None:
                await self._successor.result().abort(request_id, internal=internal)

        llm.add_request = add_request
        llm.abort = abort
        llm.is_retired = True

    def pass_to(self, llm: Any) -> None:
        if not self._successor.done():
            self._successor.set_result(llm)

    def end(self, error: Exception) -> None:
        if not self._successor.done():
            self._successor.set_exception(error)
