"""A lifecycle over scripted engines, and what became of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from engine_host.engine.crash_policy import CrashPolicy
from engine_host.engine.lifecycle import Lifecycle
from engine_host.gateway.entry import Entry
from engine_host.profiles import Profile, build_profile
from engine_host.protocol.snapshot import State

from .scripted_engine import ScriptedEngine


def profile(name: str, **engine: Any) -> Profile:
    content = {"schema": 1, "engine": {"model": "scripted/model", **engine}}
    return build_profile(content, Path(f"{name}.toml"))


PROFILE = profile("a")


class QuietLog:
    reason: str | None = None
    last: tuple[str, ...] = ()

    def mark(self) -> int:
        return 0

    def errors_since(self, mark: int) -> tuple[str | None, list[str]]:
        return self.reason, [self.reason] if self.reason else []

    def last_since(self, mark: int) -> list[str]:
        return list(self.last)


class World:
    """A lifecycle over scripted engines, and what became of it."""

    def __init__(self, *engines: ScriptedEngine, pause_s: float = 0.01) -> None:
        """`pause_s`: between a crash and the next start."""
        self.engines = list(engines)
        self.made: list[ScriptedEngine] = []
        self.events: list[tuple[str, str]] = []
        self.data: dict[str, Mapping[str, Any]] = {}
        """Of the last event of each kind."""
        self.states: list[State] = []
        self.told: list[str] = []
        """What the telemetry is told."""
        self.log = QuietLog()
        self.entry = Entry()
        self.lifecycle = Lifecycle(
            PROFILE,
            self.make,
            self.entry,
            lambda step: None,
            self.log,
            self.on_event,
            crashes=CrashPolicy((pause_s, pause_s)),
            on_serving=lambda: self.told.append("serving"),
            on_gone=lambda: self.told.append("gone"),
        )

    def make(self, profile: Profile) -> ScriptedEngine:
        self.made.append(self.engines.pop(0) if self.engines else ScriptedEngine())
        return self.made[-1]

    def on_event(self, kind: str, text: str, *, data: Mapping[str, Any] | None = None, **_: Any) -> None:
        self.events.append((kind, text))
        self.data[kind] = data or {}
        self.states.append(self.lifecycle.state)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(30):
            while not condition():
                await asyncio.sleep(0.005)

    async def until_state(self, state: State) -> None:
        await self.until(lambda: self.lifecycle.state is state)


async def hold_request(entry: Entry, release: asyncio.Event) -> None:
    """Keep one POST in flight until `release`."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await release.wait()

    entry.attach(app)

    async def nothing(*_: Any) -> Any:
        return {}

    await entry({"type": "http", "method": "POST"}, nothing, nothing)
