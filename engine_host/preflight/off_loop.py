"""Calls that block, off the event loop, in threads that keep nobody from ending.

Not `asyncio.to_thread`: its threads are joined when the loop closes, and a driver call on a GPU that has fallen off the
bus, or a name server that does not answer, may never return.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def off_loop(call: Callable[..., T], *arguments: object) -> T:
    """The result of `call`, or what it raises; cancelled, the thread is left to itself and its result dropped."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if done.cancelled():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)  # type: ignore[arg-type]

    def work() -> None:
        result, error = None, None
        try:
            result = call(*arguments)
        except BaseException as raised:
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop has closed meanwhile: nobody waits
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=work, name=f"preflight {getattr(call, '__name__', '')}", daemon=True).start()
    return await done
