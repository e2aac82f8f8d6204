"""Fixtures of the console's tests: a fixed time zone, a scripted host, conditions to wait for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from tests.console.scripted_host import ScriptedHost, scripted_host

Until = Callable[[Callable[[], object]], Awaitable[None]]

DEADLINE_S = 30.0
"""For conditions that hold within milliseconds on an idle machine; generous for a busy one."""


@pytest.fixture(autouse=True)
def _utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Times of day are shown in local time; recorded screens must not depend on where they are compared."""
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.delenv("NO_COLOR", raising=False)
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
async def host(tmp_path: Path) -> AsyncIterator[ScriptedHost]:
    async with scripted_host(tmp_path / "host.sock") as running:
        yield running


@pytest.fixture
def until() -> Until:
    """Waits for a condition, polling; fails when it does not come to hold."""

    async def wait(condition: Callable[[], object]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not condition():
                await asyncio.sleep(0.005)

    return wait
