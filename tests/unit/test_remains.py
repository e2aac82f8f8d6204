"""What an ended engine leaves in this process."""

from __future__ import annotations

import functools
import sys
import weakref
from types import ModuleType

import pytest

from engine_host.engine.vllm.remains import let_go


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
