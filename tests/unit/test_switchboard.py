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
from engine_host.profiles import ProfileDirectory, load_profile
from engine_host.protocol.errors import OperatorError
from engine_host.protocol.events import Severity
from engine_host.protocol.methods import ForecastParams, SwitchParams, ThrottleSet
from engine_host.protocol.profiles import Preflight, Tier
from engine_host.protocol.snapshot import State
from engine_host.protocol.switching import Outcome
from engine_host.switchboard import Switchboard

from . import world as worlds
from .scripted_engine import FACTS, ScriptedEngine, ScriptedStream
from .world import PROFILE, World

PORT = 8123


def write(directory: Path, name: str, engine: str = "") -> None:
    (directory / f"{name}.toml").write_text(f'schema = 1\n[engine]\nmodel = "scripted/model"\n{engine}\n')


@asynccontextmanager
async def board_of(
    world: World, tmp_path: Path, state: State = State.SERVING, waiting: int = 0
) -> AsyncIterator[Switchboard]:
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
            lambda: waiting,
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


async def test_a_reload_tells_what_was_added_changed_and_removed_and_what_is_refused(tmp_path: Path) -> None:
    for name in ("kept", "edited", "removed", "spoilt"):
        write(tmp_path, name)
    async with board_of(World(), tmp_path) as board:
        assert board.reload().text.endswith("nothing has changed")
        write(tmp_path, "new")
        write(tmp_path, "edited", "max_num_seqs = 4")
        (tmp_path / "removed.toml").unlink()
        (tmp_path / "spoilt.toml").write_text("schema = 1\n[engine]\n")
        found = board.reload()
        assert (found.added, found.removed, found.changed) == (["new"], ["removed"], ["edited", "spoilt"])
        assert list(found.broken) == ["spoilt"] and "engine.model" in found.broken["spoilt"]
        assert "added: new; removed: removed; changed: edited, spoilt; refused: spoilt" in found.text
        write(tmp_path, "spoilt")
        again = board.reload()
        assert (again.added, again.removed, again.changed, again.broken) == ([], [], ["spoilt"], {})
        assert again.since >= found.since


async def test_a_reload_counts_from_the_start_of_the_host(tmp_path: Path) -> None:
    async with board_of(World(), tmp_path) as board:
        write(tmp_path, "new")
        assert board.reload().added == ["new"]
        assert board.reload().added == []


async def test_a_comment_in_a_file_changes_nothing(tmp_path: Path) -> None:
    write(tmp_path, "kept")
    async with board_of(World(), tmp_path) as board:
        write(tmp_path, "kept", "# why")
        assert board.reload().changed == []


async def test_a_reload_says_that_the_running_profile_waits_for_a_switch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "a")
    monkeypatch.setattr(worlds, "PROFILE", load_profile(tmp_path / "a.toml"))
    async with board_of(World(), tmp_path) as board:
        write(tmp_path, "a", "max_num_seqs = 4")
        assert "the running profile's file has changed; switch to it to apply that" in board.reload().text


async def test_profiles_are_listed_shown_and_compared_as_they_are_now(tmp_path: Path) -> None:
    """Nothing of the directory is kept: an edited file is seen without a reload."""
    write(tmp_path, "one", "max_num_seqs = 4")
    async with board_of(World(), tmp_path) as board:
        assert [one.name for one in board.profiles().profiles] == ["one"]
        write(tmp_path, "two", "max_num_seqs = 8")
        assert [one.name for one in board.profiles().profiles] == ["one", "two"]
        assert board.profile("two").effective["engine"]["max_num_seqs"] == 8
        assert [change.key for change in board.diff("one", "two").changes] == ["engine.max_num_seqs"]
        assert board.diff(None, "two").before == PROFILE.name, "what runs"
        with pytest.raises(OperatorError, match='no profile "tow"'):
            board.profile("tow")


@pytest.mark.parametrize(
    ("change", "tier", "shares"),
    [
        ("[switch]\ndrain_timeout_s = 5", Tier.LIVE, (0, 0, 0)),
        ("max_num_seqs = 4", Tier.RELOAD, (1, 1, 0)),
    ],
)
async def test_a_forecast_counts_what_runs_also_when_none_of_it_notices(
    tmp_path: Path, checks: Checks, change: str, tier: Tier, shares: tuple[int, int, int]
) -> None:
    write(tmp_path, "b", change)
    engine = ScriptedEngine(streams=[ScriptedStream("one"), ScriptedStream("grammar", carryable=False)])
    async with board_of(World(engine), tmp_path) as board:
        told = await board.forecast(ForecastParams(profile="b"))
        assert (told.tier, told.running) == (tier, 2)
        assert (told.will_carry, told.will_drain, told.will_replay) == shares


@pytest.mark.parametrize(("waiting", "shown"), [(1, (1, 1)), (9, (0, 2))])
async def test_a_forecast_tells_those_that_wait_from_those_that_run(
    tmp_path: Path, checks: Checks, waiting: int, shown: tuple[int, int]
) -> None:
    write(tmp_path, "b")
    engine = ScriptedEngine(streams=[ScriptedStream("one"), ScriptedStream("two")])
    async with board_of(World(engine), tmp_path, waiting=waiting) as board:
        told = await board.forecast(ForecastParams(profile="b"))
        assert (told.running, told.waiting) == shown, "never more than there are: the scheduler's word may be older"


async def test_a_cancel_is_answered_when_what_ran_before_goes_on(tmp_path: Path, checks: Checks) -> None:
    write(tmp_path, "b", "max_num_seqs = 4")
    async with board_of(World(ScriptedEngine(streams=[ScriptedStream("grammar", carryable=False)])), tmp_path) as board:
        under_way = asyncio.create_task(board.switch(SwitchParams(profile="b", idempotency_key="k"), "ops"))
        while board.status().active is None:
            await asyncio.sleep(0)
        assert await board.cancel("maria") == "maria cancelled the switch to b; a goes on"
        assert (await under_way).outcome is Outcome.CANCELLED
        with pytest.raises(OperatorError, match="no switch is under way"):
            await board.cancel("maria")


async def test_keys_that_no_switch_applies_are_named_with_what_does(tmp_path: Path, checks: Checks) -> None:
    (tmp_path / "b.toml").write_text('schema = 1\n[engine]\nmodel = "scripted/model"\n[server]\nport = 9\n')
    async with board_of(World(), tmp_path) as board:
        result = await board.switch(SwitchParams(profile="b", idempotency_key="k"), "ops")
        assert result.outcome is Outcome.SWITCHED
        assert "; server.port not yet: the host keeps its listener" in result.text


async def test_a_dry_run_while_the_host_starts_says_that_a_switch_is_refused_now(
    tmp_path: Path, checks: Checks
) -> None:
    write(tmp_path, "b", "max_num_seqs = 4")
    async with board_of(World(ScriptedEngine(start_hangs=True)), tmp_path, State.STARTING) as board:
        told = await board.forecast(ForecastParams(profile="b"))
        assert not told.ok and told.not_now is not None
        assert (told.not_now.severity, told.not_now.remedy) == (
            Severity.ERROR,
            "Follow it with `vllm-console watch` and try again.",
        )
        assert told.not_now.text == (
            "a switch is refused now: the host is starting, and a profile is switched while it is serving or dead"
        )


async def test_a_dry_run_beside_a_switch_names_who_switches(tmp_path: Path, checks: Checks) -> None:
    write(tmp_path, "b", "max_num_seqs = 4")
    async with board_of(World(ScriptedEngine(streams=[ScriptedStream("grammar", carryable=False)])), tmp_path) as board:
        assert (await board.forecast(ForecastParams(profile="b"))).ok
        under_way = asyncio.create_task(board.switch(SwitchParams(profile="b", idempotency_key="k"), "ops"))
        while board.status().active is None:
            await asyncio.sleep(0)
        told = await board.forecast(ForecastParams(profile="b"))
        assert not told.ok and told.not_now is not None and "ops switches to b since" in told.not_now.text
        await board.cancel("maria")
        await under_way


@pytest.mark.parametrize(
    ("engine", "lost"),
    [
        ('served_model_name = "chat"', ["scripted/model"]),
        ('served_model_name = ["chat", "scripted/model"]', []),
        ("max_num_seqs = 4", []),
    ],
)
async def test_a_dry_run_warns_of_a_name_that_clients_can_no_longer_ask_for(
    tmp_path: Path, checks: Checks, engine: str, lost: list[str]
) -> None:
    write(tmp_path, "b", engine)
    async with board_of(World(), tmp_path) as board:
        told = await board.forecast(ForecastParams(profile="b"))
        assert told.ok
        texts = [found.text for found in told.findings if found.id == "names.lost"]
        assert texts == [f"clients that ask for {name} get 404 after the switch: b serves chat" for name in lost]
        for found in told.findings:
            assert found.severity is Severity.WARNING
            assert 'served_model_name = ["chat", "scripted/model"]' in found.remedy


async def test_a_dry_run_says_what_was_set_by_hand_at_the_gate_and_stays(tmp_path: Path, checks: Checks) -> None:
    write(tmp_path, "b")
    world = World()
    async with board_of(world, tmp_path) as board:
        assert (await board.forecast(ForecastParams(profile="b"))).findings == []
        world.lifecycle.throttle.set(ThrottleSet(limits={"max_inflight": 16}, idempotency_key="k"), "ops")
        [found] = (await board.forecast(ForecastParams(profile="b"))).findings
        assert found.id == "throttle.by_hand" and found.remedy.endswith("vllm-console throttle clear")
        assert "max_inflight 16, where the profile says none (ops, until it is cleared)" in found.text


async def test_a_dry_run_and_the_switch_say_which_limit_ends_as_the_profile_has_other_classes(
    tmp_path: Path, checks: Checks
) -> None:
    write(tmp_path, "b", '[throttle]\nclasses = ["bulk", "chat"]')
    world = World()
    async with board_of(world, tmp_path) as board:
        world.lifecycle.throttle.set(ThrottleSet(limits={"min_class": "high"}, idempotency_key="k"), "ops")
        world.lifecycle.throttle.set(ThrottleSet(limits={"max_inflight": 16}, idempotency_key="l"), "ops")
        ends, stays = (await board.forecast(ForecastParams(profile="b"))).findings
        assert (ends.id, ends.severity) == ("throttle.ends", Severity.WARNING)
        assert ends.text.startswith("set by hand at the gate, and ends with the switch: min_class high")
        assert ends.text.endswith("b has the classes bulk, chat")
        assert "max_inflight 16" in stays.text and "min_class" not in stays.text
        result = await board.switch(SwitchParams(profile="b", idempotency_key="m"), "ops")
        assert result.limits == [
            "min_class high of ops has ended: b has the classes bulk, chat",
            "still set by hand under b too: max_inflight 16, where the profile says none (ops, until it is cleared)",
        ]
