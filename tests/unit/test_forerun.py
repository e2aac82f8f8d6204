"""Computing ahead what another engine's requests hold."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from engine_host.engine.port import Bound
from engine_host.engine.vllm import forerun as module
from engine_host.engine.vllm.forerun import forerun

from .test_carrying import Request, request, state


class Old:
    """The ledger of an engine that goes on: each look at it finds more tokens."""

    def __init__(self, *requests: Request) -> None:
        self._requests = requests
        self.looks = 0

    def unfinished(self) -> list[tuple[str, Any, Any]]:
        self.looks += 1
        return [(r.request_id, state(r.request_id, tokens=5 * self.looks), r) for r in self._requests]


class New:
    def __init__(self, takes_s: float = 0.0, fault: Exception | None = None) -> None:
        self.asked: list[tuple[dict[str, Any], Any]] = []
        self.given_up = 0
        self._takes_s = takes_s
        self._fault = fault

    async def generate(self, prompt: dict[str, Any], params: Any, request_id: str) -> AsyncIterator[Any]:
        self.asked.append((prompt, params))
        try:
            await asyncio.sleep(self._takes_s)
        except asyncio.CancelledError:
            self.given_up += 1
            raise
        if self._fault is not None:
            raise self._fault
        yield SimpleNamespace()


@pytest.fixture(autouse=True)
def vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = ModuleType("vllm")
    fake.SamplingParams = SimpleNamespace  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm", fake)


async def test_the_prompt_and_the_tokens_so_far_of_each_are_asked_for_one_token_more() -> None:
    new, old = New(), Old(request("a"), request("b"))
    assert await forerun(new, old, Bound(), 5.0) == 2  # type: ignore[arg-type]
    assert [prompt["prompt_token_ids"] for prompt, _ in new.asked] == [[*range(10), *range(5)]] * 2
    assert all(params.max_tokens == 1 for _, params in new.asked)
    assert "cache_salt" not in new.asked[0][0]


async def test_who_shares_no_cache_is_computed_for_itself() -> None:
    salted = request("a")
    salted.cache_salt = "of maria"
    new = New()
    await forerun(new, Old(salted), Bound(), 5.0)  # type: ignore[arg-type]
    assert new.asked[0][0]["cache_salt"] == "of maria"


async def test_what_will_not_be_carried_is_not_computed() -> None:
    new = New()
    assert await forerun(new, Old(request("a", seed=1, temperature=0.5)), Bound(), 5.0) == 0  # type: ignore[arg-type]
    assert await forerun(new, Old(request("a")), Bound(max_tokens=20), 5.0) == 0  # type: ignore[arg-type]
    assert not new.asked


async def test_what_came_meanwhile_is_computed_in_a_further_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SHORT_S", 0.01)
    new = New(takes_s=0.02)
    assert await forerun(new, Old(request("a")), Bound(), 5.0) == 1  # type: ignore[arg-type]
    assert [len(prompt["prompt_token_ids"]) for prompt, _ in new.asked] == [15, 20, 25]


async def test_it_takes_no_longer_than_it_may_and_leaves_no_request_behind() -> None:
    new = New(takes_s=60)
    async with asyncio.timeout(5):
        assert await forerun(new, Old(request("a"), request("b")), Bound(), 0.05) == 2  # type: ignore[arg-type]
    assert new.given_up == 2


async def test_a_fault_of_it_is_none_of_the_switch() -> None:
    new = New(fault=RuntimeError("no such thing"))
    assert await forerun(new, Old(request("a")), Bound(), 5.0) == 1  # type: ignore[arg-type]
