"""What an ended engine leaves in this process."""

from __future__ import annotations

import asyncio
import functools
import gc
import sys
import weakref
from types import ModuleType

import pytest

from engine_host.engine.vllm import remains
from engine_host.engine.vllm.remains import let_go, let_go_in_the_end


class Tokenizer:
    """Takes megabytes."""


@pytest.mark.parametrize("name", ["vllm.tokenizers.registry", "vllm.renderers.hf", "vllm.utils.func_utils"])
def test_what_a_cache_of_vllm_holds_of_it_is_let_go(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType(name)
    module.asked = functools.lru_cache(lambda tokenizer: True)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, name, module)
    tokenizer = Tokenizer()
    module.asked(tokenizer)
    gone = weakref.ref(tokenizer)
    del tokenizer
    let_go()
    assert gone() is None


def test_other_caches_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("vllm.platforms")
    module.asked = functools.lru_cache(lambda: True)  # type: ignore[attr-defined]
    module.asked()
    monkeypatch.setitem(sys.modules, "vllm.platforms", module)
    let_go()
    assert module.asked.cache_info().currsize == 1


def test_what_refers_to_itself_is_let_go() -> None:
    tokenizer = Tokenizer()
    tokenizer.itself = tokenizer  # type: ignore[attr-defined]
    gone = weakref.ref(tokenizer)
    del tokenizer
    let_go()
    assert gone() is None


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remains, "_AGAIN_AFTER_S", (0.01,) * 1_000)


def in_a_circle() -> Tokenizer:
    engine = Tokenizer()
    engine.itself = engine  # type: ignore[attr-defined]
    return engine


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("was_whole", [True, False])
async def test_what_is_still_in_use_when_it_ends_is_let_go_once_it_is_not(was_whole: bool) -> None:
    engine = in_a_circle()
    gone = weakref.ref(engine)
    gc.disable()
    try:
        await let_go_in_the_end(gone if was_whole else None)
        await asyncio.sleep(0.05)
        assert gone() is not None
        del engine
        async with asyncio.timeout(20):
            while gone() is not None:
                await asyncio.sleep(0.01)
    finally:
        gc.enable()
        for task in list(remains._going):
            task.cancel()


@pytest.mark.usefixtures("soon")
async def test_what_is_gone_at_once_is_not_looked_for_again() -> None:
    gone = weakref.ref(in_a_circle())
    await let_go_in_the_end(gone)
    assert gone() is None and not remains._going
