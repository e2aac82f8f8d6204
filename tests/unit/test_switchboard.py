"""What the control socket asks about profiles, over a lifecycle with scripted engines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from engine_host import switchboard as room
from engine_host.engine.start_times import StartTimes
from engine_host.preflight.known_answers import KnownAnswers
from engine_host.preflight.preflight import PreflightReport
from engine_host.profiles import ProfileDirectory
from engine_host.protocol.profiles import Preflight
from engine_host.protocol.snapshot import State
from engine_host.switchboard import Switchboard

from .scripted_engine import FACTS, ScriptedEngine
from .world import World

PORT = 8123


def write(directory: Path, name: str, engine: str = "") -> None:
    (directory / f"{name}.toml").write_text(f'schema = 1\n[engine]\nmodel = "scripted/model"\n{engine}\n')


@asynccontextmanager
async def board_of(world: World, tmp_path: Path, state: State = State.SERVING) -> AsyncIterator[Switchboard]:
    run = asyncio.create_task(world.lifecycle.run())
    await world.until_state(state)
    try:
        yield Switchboard(
            world.lifecycle,
            ProfileDirectory(tmp_path),
            tmp_path,
            StartTimes(tmp_path / "start-times.json"),
            PORT,
            KnownAnswers(),
        )
    finally:
        await world.lifecycle.stop(0.0)
        await run


class Checks:
    """Preflights that pass, and what they were told."""

    def __init__(self) -> None:
        self.told: list[dict[str, Any]] = []

    async def run(self, profile: Any, **how: Any) -> PreflightReport:
        self.told.append(how)
        return PreflightReport(Preflight(profile=profile.name, digest=profile.digest, ok=True))


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> Checks:
    checks = Checks()
    monkeypatch.setattr(room, "run_preflight", checks.run)
    return checks


async def test_a_check_knows_the_running_engine_and_what_earlier_checks_learned(tmp_path: Path, checks: Checks) -> None:
    write(tmp_path, "other")
    async with board_of(World(), tmp_path) as board:
        assert (await board.check("other")).ok
        await board.check("other")
    first, second = checks.told
    assert first["engine_pids"] == FACTS.core_pids and first["running_port"] == PORT
    assert isinstance(first["known"], KnownAnswers) and second["known"] is first["known"]


async def test_a_check_without_a_running_engine_counts_nothing_as_given_back(tmp_path: Path, checks: Checks) -> None:
    write(tmp_path, "other")
    world = World(ScriptedEngine(), ScriptedEngine(start_hangs=True))
    async with board_of(world, tmp_path) as board:
        world.made[0].is_dead = True
        await world.until(lambda: world.lifecycle.engine is None)
        await board.check("other")
    assert list(checks.told[0]["engine_pids"]) == []
