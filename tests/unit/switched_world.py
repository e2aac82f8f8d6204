"""A host over scripted engines that is asked to switch."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from engine_host.engine import death_watch, last_words
from engine_host.engine.switch import SwitchOrder
from engine_host.engine.timeline import PhaseTimes
from engine_host.profiles import Profile
from engine_host.protocol.events import Severity
from engine_host.protocol.profiles import Finding, Preflight, Tier
from engine_host.protocol.snapshot import State
from engine_host.protocol.switching import SwitchResult

from .scripted_engine import ScriptedEngine
from .world import World, profile

OTHER = profile("b", max_num_seqs=4)
OTHER_MODEL = profile("c", tokenizer="scripted/other")


@dataclass
class Checked:
    fits_beside: bool | None = False
    errors: list[str] = field(default_factory=list)

    @property
    def wire(self) -> Preflight:
        findings = [Finding(id="x", severity=Severity.ERROR, text=text) for text in self.errors]
        return Preflight(profile="b", ok=not self.errors, findings=findings)


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(death_watch, "POLL_S", 0.005)
    monkeypatch.setattr(last_words, "LAST_WORDS_S", 0.0)


class Client:
    """One request to the API."""

    def __init__(self, world: World, method: str = "POST", path: str = "") -> None:
        self.sent: list[Any] = []
        scope = {"type": "http", "method": method, "path": path}
        self.answered = asyncio.create_task(world.entry(scope, asyncio.Event().wait, self._take))

    async def _take(self, message: Any) -> None:
        self.sent.append(message)

    async def status(self) -> int:
        async with asyncio.timeout(10):
            await self.answered
        return int(self.sent[0]["status"])


@asynccontextmanager
async def serving(*engines: ScriptedEngine) -> AsyncIterator[World]:
    world = World(*engines)
    run = asyncio.create_task(world.lifecycle.run())
    await world.until_state(State.SERVING)
    try:
        yield world
    finally:
        await world.lifecycle.stop(0.0)
        await run


async def switch(
    world: World,
    to: Profile = OTHER,
    *,
    tmp_path: Path,
    checked: Checked | None = None,
    tier: Tier | None = None,
    drain_s: float = 0.2,
    preflight: Callable[[Profile], Coroutine[Any, Any, Any]] | None = None,
) -> SwitchResult:
    async def passes(profile: Profile) -> Checked:
        return checked or Checked()

    order = SwitchOrder(to, tier, drain_s, "ops")
    async with asyncio.timeout(30):
        return await world.lifecycle.switch(order, preflight or passes, PhaseTimes(tmp_path / "times.json"))
