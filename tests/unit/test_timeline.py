"""The timeline of a switch: what is left of it, by earlier ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine_host.engine.timeline import PhaseTimes, Timeline
from engine_host.gateway.entry import Entry
from engine_host.protocol.profiles import Tier
from engine_host.protocol.switching import PhaseName

from .scripted_engine import ScriptedEngine
from .switched_world import OTHER, serving, switch
from .switched_world import fast as fast


def test_what_is_left_is_of_the_phases_that_have_not_ended() -> None:
    timeline = Timeline({"preflight": 4.0, "hold": 1.0, "start": 30.0})
    assert timeline.left_s == 35.0
    with timeline.phase(PhaseName.PREFLIGHT):
        assert timeline.left_s == 35.0
    with timeline.phase(PhaseName.HOLD):
        assert timeline.left_s == 31.0
    assert Timeline().left_s is None, "the first switch to a profile has nothing to go by"


async def test_the_entry_is_told_how_long_it_will_hold_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []
    hold = Entry.hold

    def watched(entry: Entry, deadline_s: float, expected_s: float | None = None) -> None:
        told.append(expected_s)
        hold(entry, deadline_s, expected_s)

    monkeypatch.setattr(Entry, "hold", watched)
    earlier = {"preflight": 9.0, "prepare": 8.0, "hold": 0.5, "start": 20.0, "release": 0.5}
    PhaseTimes(tmp_path / "times.json").remember(OTHER.digest, Tier.RELOAD, earlier)
    async with serving(ScriptedEngine(), ScriptedEngine()) as world:
        await switch(world, tmp_path=tmp_path)
    assert told == [21.0]
