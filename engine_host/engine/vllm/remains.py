"""What is left in this process of an engine that has ended. A host that switches every hour would have no memory and no
descriptors left in a week.

vLLM leaves its ZeroMQ context (nine descriptors and three threads) and its pipes to the garbage collector, and what
refers to them runs in circles. And it caches what it finds out about tokenizers, by tokenizer: each engine has some of
its own, and about 40 MB of them stay for as long as a cache has room. What is freed at last lies in pieces, in heaps of
threads that have ended: the C library gives it back when told to.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import functools
import gc
import sys
import weakref
from collections.abc import Callable
from typing import Any

_Cached = type(functools.cache(len))
_CACHING = ("vllm.tokenizers", "vllm.renderers", "vllm.utils.func_utils")
"""Modules whose caches hold tokenizers, or methods of theirs. What is asked again is found out again."""

_AGAIN_AFTER_S = (3.0, 12.0, 45.0, 240.0)
_going: set[asyncio.Task[None]] = set()


async def let_go_in_the_end(of: weakref.ref[Any] | None) -> None:
    """Now, and if that was too early again later, in a task of its own: a stream that went over to another engine ends
    in frames that refer to the former one, and who deals with a failed start refers to its error, which has all the
    frames of that start. `of`: the ended engine; None if it was never whole, and cannot be looked for."""
    await asyncio.to_thread(let_go)
    if of is None or of() is not None:
        task = asyncio.create_task(_again(of or (lambda: True)))
        _going.add(task)
        task.add_done_callback(_going.discard)


async def _again(is_there: Callable[[], Any]) -> None:
    for pause_s in _AGAIN_AFTER_S:
        await asyncio.sleep(pause_s)
        await asyncio.to_thread(let_go)
        if not is_there():
            return


def let_go() -> None:
    """To be called when nothing refers to the ended engine any more. Takes tenths of a second: call it in a thread."""
    for name, module in list(sys.modules.items()):
        if name.startswith(_CACHING):
            for cached in list(vars(module).values()):
                if isinstance(cached, _Cached):
                    cached.cache_clear()
    gc.collect()
    with contextlib.suppress(AttributeError, OSError):  # glibc alone has it
        ctypes.CDLL(None).malloc_trim(0)
