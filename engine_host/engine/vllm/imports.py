"""Importing vLLM while the event loop lives.

The imports make about a million objects that stay for good, and every full garbage collection meanwhile looks at all
of them with the interpreter locked: the event loop stood still for up to 0.7 s at a time, and a quarter of the imports'
time went into it. So they are made without collections, and what they leave is taken out of the later ones, which would
stall streams.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
from collections.abc import Iterator

from engine_host.engine.vllm.releases import api_builders


def import_vllm() -> None:
    """All that a start needs. Takes 8 s or more the first time: call it in a thread."""
    with without_collections():
        importlib.import_module("vllm.engine.arg_utils")
        importlib.import_module("vllm.v1.engine.async_llm")
        api_builders()


_has_frozen = False


@contextlib.contextmanager
def without_collections() -> Iterator[None]:
    """No garbage collection until the end. The first time, what is there then is never looked at again; later it would
    be garbage of the requests between that is kept for ever."""
    global _has_frozen
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if not _has_frozen:
            _has_frozen = True
            gc.freeze()
        if was_enabled:
            gc.enable()


@contextlib.contextmanager
def without_freezing() -> Iterator[None]:
    """vLLM's app freezes the heap when it starts, which suits a process that ends with its engine: frozen objects are
    never collected, and an engine is full of circles. Here engines come and go, and each would stay, with the
    descriptors and threads of its sockets."""
    freeze = gc.freeze
    gc.freeze = lambda: None
    try:
        yield
    finally:
        gc.freeze = freeze
