"""What is left in this process of an engine that has ended. A host that switches every hour would have no memory and no
descriptors left in a week.

vLLM leaves its ZeroMQ context (nine descriptors and three threads) and its pipes to the garbage collector, and what
refers to them runs in circles. And it caches what it finds out about tokenizers, by tokenizer: each engine has some of
its own, and about 40 MB of them stay for as long as a cache has room. What is freed at last lies in pieces, in heaps of
threads that have ended: the C library gives it back when told to.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import sys

_Cached = type(functools.cache(len))
_CACHING = ("vllm.tokenizers", "vllm.renderers", "vllm.utils.func_utils")
"""Modules whose caches hold tokenizers, or methods of theirs. What is asked again is found out again."""


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
