"""The cap of the automatic controller between the profile's and the operators'."""

from __future__ import annotations

from engine_host.protocol.throttling import AutoGauge, GateCounts

from .desk import WALL, Desk, profile


async def test_the_controllers_cap_is_in_force_and_told_while_it_is_on(desk: Desk) -> None:
    assert desk.auto("on", reason="night") == "auto off → on: night"
    desk.throttle.propose(32, "KV 94 % for 3 s: cap 64 → 32")
    assert desk.gate.limits.max_inflight == 32
    assert desk.events == [("throttle.auto", "KV 94 % for 3 s: cap 64 → 32")]
    limit = desk.throttle.sheet().limits["max_inflight"]
    assert (limit.value, limit.profile, limit.who, limit.reason) == (32, 64, "auto", "KV 94 % for 3 s: cap 64 → 32")
    auto = desk.throttle.sheet().auto
    assert (auto.mode, auto.who, auto.cap, auto.acted_at, auto.overruled_by) == ("on", "ops", 32, WALL + 100, None)
    desk.throttle.propose(None, "the load is gone: cap 32 → none")
    assert desk.gate.limits.max_inflight == 64


async def test_it_never_exceeds_the_profiles_cap(desk: Desk) -> None:
    desk.auto("on")
    desk.throttle.propose(100, "more")
    assert (desk.gate.limits.max_inflight, desk.throttle.bound) == (64, 64)
    assert desk.throttle.sheet().limits["max_inflight"].who is None


async def test_while_it_observes_it_is_told_and_nothing_is_in_force(desk: Desk) -> None:
    desk.auto("observe")
    desk.throttle.propose(32, "would move the cap 64 → 32")
    assert desk.gate.limits.max_inflight == 64
    assert desk.events == [("throttle.auto", "would move the cap 64 → 32")]
    assert desk.throttle.sheet().auto.cap == 32
    desk.auto("on")  # what it only thought of does not come into force by the way
    assert desk.gate.limits.max_inflight == 64


async def test_what_it_thought_of_under_one_profile_is_not_in_force_under_another(desk: Desk) -> None:
    desk.throttle.attach(profile(max_inflight=64, auto={"mode": "observe"}))
    desk.throttle.propose(32, "would move the cap 64 → 32")
    moves = desk.throttle.auto_mode_moves
    desk.throttle.attach(profile("b", max_inflight=64, auto={"mode": "on"}))
    assert (desk.gate.limits.max_inflight, desk.throttle.auto_mode_moves) == (64, moves + 1)
    desk.throttle.propose(32, "KV 94 %")
    desk.throttle.attach(profile("c", max_inflight=64, auto={"mode": "on"}))
    assert (desk.gate.limits.max_inflight, desk.throttle.auto_mode_moves) == (32, moves + 1)


async def test_turned_off_its_cap_is_gone_at_once_and_what_it_says_later_is_not_told(desk: Desk) -> None:
    desk.auto("on", for_s=600)
    desk.throttle.propose(32, "KV 94 %")
    desk.after(600)
    assert desk.gate.limits.max_inflight == 64
    assert desk.events[-1] == ("throttle.returned", "auto on → off: the 10 m of ops are over")
    desk.throttle.propose(16, "late")
    assert desk.gate.limits.max_inflight == 64 and desk.events[-1][1] != "late"


async def test_an_operators_cap_always_wins_and_the_sheet_says_so(desk: Desk) -> None:
    desk.auto("on")
    desk.throttle.propose(8, "KV 94 %")
    assert desk.set(max_inflight=100, for_s=60) == "max_inflight 8 (auto) → 100 for 1 m"
    desk.throttle.propose(4, "KV 99 %")
    assert desk.gate.limits.max_inflight == 100
    assert desk.throttle.sheet().auto.overruled_by == "ops"
    assert desk.throttle.auto_overruled_by == "ops"
    desk.set(max_inflight=None, for_s=30)
    assert desk.gate.limits.max_inflight is None
    desk.after(60)
    assert desk.gate.limits.max_inflight == 4
    assert desk.throttle.sheet().auto.overruled_by is None


async def test_who_turns_it_on_is_told_whose_cap_wins(desk: Desk) -> None:
    desk.set(who="maria", max_inflight=16)
    assert desk.auto("on") == "auto off → on (max_inflight 16 of maria wins over it)"


async def test_the_sheet_has_its_gauges_and_the_gates_counts(desk: Desk) -> None:
    gauge = AutoGauge(name="kv", value=0.5, enter=0.9, leave=0.8)
    desk.throttle.gauges = lambda: [gauge]
    desk.gate.told = GateCounts(inflight=3, held=2, admitted_total=9, refused_total=1, refused_by_reason={"class": 1})
    sheet = desk.throttle.sheet()
    assert (sheet.auto.gauges, sheet.counts.inflight) == ([gauge], 3)
    short = desk.throttle.snapshot()
    assert (short.inflight, short.admitted_total, short.refused_by_reason) == (3, 9, {"class": 1})


async def test_the_snapshot_names_what_is_not_the_profiles(desk: Desk) -> None:
    assert desk.throttle.snapshot().limited_by == []
    desk.auto("on")
    desk.throttle.propose(8, "KV 94 %")
    desk.set(hold_queue=3)
    desk.pause()
    short = desk.throttle.snapshot()
    assert short.limited_by == ["max_inflight", "hold_queue", "paused"]
    assert short.set_by == {"max_inflight": "auto", "hold_queue": "ops", "paused": "ops"}
    assert (short.auto, short.auto_text, short.max_inflight, short.paused) == ("on", "KV 94 %", 8, True)
