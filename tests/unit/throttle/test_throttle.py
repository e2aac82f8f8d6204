"""The throttle: three layers, settings that end, and what is told of them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from engine_host.profiles import build_profile
from engine_host.protocol.errors import EXIT_INVALID, EXIT_REFUSED, OperatorError
from engine_host.protocol.snapshot import State
from engine_host.protocol.throttling import AutoMode, Former, LimitName
from engine_host.throttle import throttle as room
from engine_host.throttle.limits import Limits

from .desk import WALL, Desk, profile


def refused(call: Any, *arguments: Any, **named: Any) -> OperatorError:
    with pytest.raises(OperatorError) as caught:
        call(*arguments, **named)
    return caught.value


# --- the profile's layer ----------------------------------------------------------------------------------------


def test_every_limit_is_one_of_the_gates_and_every_one_but_the_closed_is_a_key_of_the_profile() -> None:
    assert set(LimitName) | {"opens_in_s", "later"} == set(Limits.__dataclass_fields__)
    table = profile().throttle
    assert all(hasattr(table, name) for name in LimitName if name not in ("paused", "draining"))


def test_the_gate_has_the_profiles_limits_and_classes_from_the_start() -> None:
    desk = Desk(profile(max_inflight=8, request_rate=2.5, hold_queue=3, min_class="b", classes=["a", "b"]))
    assert desk.gate.limits == Limits(max_inflight=8, request_rate=2.5, hold_queue=3, min_class="b")
    assert desk.gate.tables[-1].classes == ["a", "b"]
    assert desk.events == []


def test_the_gate_knows_whom_vllm_will_refuse_for_want_of_an_api_key() -> None:
    table = {"schema": 1, "engine": {"model": "m"}, "server": {"api_key": ["right"]}}
    desk = Desk(build_profile(table, Path("a.toml")))
    assert desk.gate.keys.are_missed_by({"path": "/v1/completions", "headers": []})
    assert not desk.gate.keys.are_missed_by(
        {"path": "/v1/completions", "headers": [(b"authorization", b"Bearer right")]}
    )


def test_the_sheet_says_where_a_limit_stands_that_nobody_has_set() -> None:
    sheet = Desk(profile(max_inflight=8, overlong="segment")).throttle.sheet()
    assert list(sheet.limits) == list(LimitName)
    limit = sheet.limits["max_inflight"]
    assert (limit.value, limit.profile, limit.who, limit.since, limit.until) == (8, 8, None, None, None)
    assert (sheet.limits["paused"].value, sheet.limits["request_rate"].value) == (False, None)
    assert (sheet.class_names, sheet.overlong) == (["low", "normal", "high"], "segment")


# --- the operators' layer ---------------------------------------------------------------------------------------


async def test_a_limit_is_in_force_when_set_returns_and_says_who_set_it_why_and_until_when(desk: Desk) -> None:
    text = desk.set(max_inflight=16, hold_queue=64, for_s=600, reason="KV pressure")
    assert text == "max_inflight 64 → 16, hold_queue 256 → 64 for 10 m: KV pressure"
    assert (desk.gate.limits.max_inflight, desk.gate.limits.hold_queue) == (16, 64)
    limit = desk.throttle.sheet().limits["max_inflight"]
    assert (limit.value, limit.profile, limit.who, limit.reason) == (16, 64, "ops", "KV pressure")
    assert (limit.since, limit.until) == (WALL + 100, WALL + 700)


async def test_no_limit_even_where_the_profile_has_one(desk: Desk) -> None:
    assert desk.set(max_inflight=None) == "max_inflight 64 → none"
    assert desk.gate.limits.max_inflight is None
    assert desk.throttle.sheet().limits["max_inflight"].who == "ops"


async def test_former_values_return_one_after_the_other_each_told_in_words(desk: Desk) -> None:
    desk.set(max_inflight=32, who="maria", for_s=3600)
    desk.set(max_inflight=16, for_s=600)
    desk.after(599)
    assert desk.gate.limits.max_inflight == 16 and desk.events == []
    desk.after(1)
    assert desk.gate.limits.max_inflight == 32
    assert desk.events == [("throttle.returned", "max_inflight 16 → 32: the 10 m of ops are over")]
    desk.after(3000)
    assert desk.gate.limits.max_inflight == 64
    assert desk.events[1:] == [("throttle.returned", "max_inflight 32 → 64: the 1 h of maria are over")]
    assert desk.throttle.sheet().limits["max_inflight"].who is None


async def test_what_was_set_together_ends_as_one_event(desk: Desk) -> None:
    desk.set(max_inflight=16, request_rate=5, for_s=60)
    desk.set(who="maria", hold_queue=1, for_s=60)
    desk.after(60)
    assert [text for _, text in desk.events] == [
        "max_inflight 16 → 64, request_rate 5 → none: the 1 m of ops are over",
        "hold_queue 1 → 256: the 1 m of maria are over",
    ]


async def test_it_ends_by_itself_on_the_event_loop() -> None:
    desk = Desk()
    desk.throttle._clock = time.monotonic
    desk.set(max_inflight=16, for_s=0.02)
    assert desk.gate.limits.max_inflight == 16
    await desk.until(lambda: desk.gate.limits.max_inflight is None)
    assert desk.events[0][1].startswith("max_inflight 16 → none")


async def test_a_setting_that_has_ended_is_told_even_if_another_call_comes_before_its_timer(desk: Desk) -> None:
    desk.set(max_inflight=16, for_s=60)
    desk.now += 61
    assert desk.set(max_inflight=8) == "max_inflight 64 → 8"
    assert desk.events == [("throttle.returned", "max_inflight 16 → 64: the 1 m of ops are over")]


async def test_a_gate_that_fails_at_an_end_is_told_again(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "RETRY_S", 0.001)
    desk.set(max_inflight=16, for_s=60)
    desk.gate.failure = RuntimeError("bug")
    desk.after(61)
    assert desk.gate.limits.max_inflight == 16
    desk.gate.failure = None
    await desk.until(lambda: desk.gate.limits.max_inflight == 64)
    assert desk.events == [("throttle.returned", "max_inflight 16 → 64: the 1 m of ops are over")]


async def test_clear_brings_back_what_the_profile_says_of_one_or_of_all(desk: Desk) -> None:
    desk.set(max_inflight=16, for_s=600)
    desk.set(max_inflight=8, hold_queue=1)
    desk.pause()
    desk.auto("observe")
    assert desk.clear("hold_queue", reason="tried") == "hold_queue 1 → 256: tried"
    assert desk.clear() == "max_inflight 8 → 64, resumed, auto observe → off"
    assert desk.gate.limits == Limits(max_inflight=64)
    assert desk.clear() == "nothing was set by hand"
    assert desk.clear("max_inflight") == "max_inflight stays 64"
    assert desk.clear("auto") == "auto stays off"
    desk.after(600)
    assert desk.events == []  # and nothing of it ends later


@pytest.mark.parametrize(
    ("limits", "fact", "remedy"),
    [
        ({"max_inflght": 3}, 'no limit "max_inflght"', 'did you mean "max_inflight"?'),
        ({"overlong": "truncate"}, 'no limit "overlong"', "valid: "),
        ({"max_inflight": -1}, "max_inflight -1: expected a whole number of at least 1", "throttle show"),
        ({"max_inflight": 0}, "max_inflight 0: expected a whole number of at least 1", "throttle show"),
        ({"max_inflight": 1.5}, "max_inflight 1.5: expected a whole number", "throttle show"),
        ({"max_inflight": True}, "max_inflight true: expected a whole number", "throttle show"),
        ({"max_inflight": 1 << 60}, "at most 1000000000", "throttle show"),
        ({"max_inflight": "x" * 500}, "max_inflight 'xxx", "throttle show"),
        ({"request_rate": float("nan")}, "request_rate nan is no finite number", "throttle show"),
        ({"request_rate": float("inf")}, "request_rate inf is no finite number", "throttle show"),
        ({"request_rate": 0}, "request_rate 0: expected a number of at least 0.001", "throttle show"),
        ({"request_rate": 1e-12}, "request_rate 1e-12: expected a number of at least 0.001", "throttle show"),
        ({"request_rate": True}, "request_rate true: expected a number", "throttle show"),
        ({"hold_queue": None}, "hold_queue none: expected a whole number, got nothing", "0 lets none wait"),
        ({"hold_deadline_s": None}, "hold_deadline_s none: expected a number, got nothing", "throttle show"),
        ({"hold_deadline_s": 1e9}, "hold_deadline_s 1e+09: expected a number of at most 86400", "throttle show"),
        ({"min_class": "hihg"}, "min_class 'hihg' is no class", 'did you mean "high"?'),
        ({"min_class": "mid"}, "min_class 'mid' is no class", "valid: low, normal, high"),
        ({"min_class": 3}, "min_class 3: expected a text, got a whole number", "throttle show"),
        ({"paused": 1}, "paused is 1, expected true or false", "throttle show"),
        ({"paused": None}, "paused is none, expected true or false", "throttle show"),
        ({"request_burst": 4}, "request_burst 4 limits nothing without request_rate", "--request-rate N"),
    ],
)  # fmt: skip
async def test_what_cannot_be_is_refused_by_name_and_nothing_is_set(
    desk: Desk, limits: dict[str, Any], fact: str, remedy: str
) -> None:
    error = refused(desk.set, **{"hold_queue": 7, **limits})
    assert fact in error.fact and len(error.fact) < 200
    assert remedy in error.remedy
    assert error.exit_code == EXIT_INVALID
    assert len(desk.gate.applied) == 1


async def test_a_class_is_found_however_it_is_written(desk: Desk) -> None:
    assert desk.set(min_class="HIGH") == "min_class none → high"
    assert desk.expecting({"min_class": "High"}, min_class="Low") == "min_class high → low"


async def test_a_pause_and_its_end_may_say_what_they_expect(desk: Desk) -> None:
    assert refused(desk.pause, expected={"paused": True}).exit_code == EXIT_REFUSED
    assert desk.pause(expected={"paused": False, "auto": "off"}) == "paused"
    error = refused(desk.resume, expected={"paused": False})
    assert (error.exit_code, error.fact) == (EXIT_REFUSED, "paused is on (set by ops); this call expected off")
    assert refused(desk.resume, expected={"auto": "on"}).fact == "auto is off; this call expected on"
    assert desk.gate.limits.paused
    assert desk.resume(expected={"paused": True}) == "resumed"


async def test_a_reason_is_kept_as_events_tell_it(desk: Desk) -> None:
    desk.set(max_inflight=16, reason="\x1b[31mred\n alert")
    assert desk.throttle.sheet().limits["max_inflight"].reason == "[31mred alert"


async def test_to_take_back_what_nobody_has_set_is_no_change(desk: Desk) -> None:
    before = desk.throttle.version
    assert desk.clear("max_inflight", "paused", "auto") == "max_inflight stays 64, not paused, auto stays off"
    assert (desk.clear(), desk.resume()) == ("nothing was set by hand", "neither paused nor draining")
    assert desk.throttle.version == before
    desk.set(max_inflight=64)
    assert desk.clear("max_inflight") == "max_inflight stays 64"
    assert desk.throttle.version > before + 1, "it was an operator's, and is the profile's again"


async def test_a_burst_goes_with_a_rate_that_somebody_has_set(desk: Desk) -> None:
    desk.set(request_rate=5)
    assert desk.set(request_burst=10) == "request_burst none → 10"
    assert desk.set(request_burst=None, request_rate=None) == "request_burst 10 → none, request_rate 5 → none"


async def test_an_unknown_name_to_clear_is_refused_with_the_nearest(desk: Desk) -> None:
    desk.set(max_inflight=16)
    assert 'did you mean "max_inflight"?' in refused(desk.clear, "max-inflihgt").remedy
    assert 'did you mean "auto"?' in refused(desk.clear, "max_inflight", "aut").remedy
    assert desk.gate.limits.max_inflight == 16


async def test_two_operators_do_not_overrule_each_other_unseen(desk: Desk) -> None:
    desk.set(who="maria", max_inflight=32)
    error = refused(desk.expecting, {"max_inflight": 64}, max_inflight=16)
    assert error.exit_code == EXIT_REFUSED
    assert error.fact == "max_inflight is 32 (set by maria); this call expected 64"
    assert desk.expecting({"max_inflight": 32, "request_rate": None}, max_inflight=16) == "max_inflight 32 → 16"


async def test_nor_do_they_over_the_controllers_mode(desk: Desk) -> None:
    desk.auto("observe", who="maria")
    error = refused(desk.auto, "on", expected=AutoMode.OFF)
    assert (error.exit_code, error.fact) == (
        EXIT_REFUSED,
        "auto is observe (set by maria); this call expected off",
    )
    assert desk.throttle.auto_mode is AutoMode.OBSERVE
    assert desk.auto("on", expected=AutoMode.OBSERVE) == "auto observe → on"


async def test_nor_over_what_one_of_them_clears(desk: Desk) -> None:
    desk.set(who="maria", max_inflight=32)
    desk.auto("on")
    stale: list[dict[str, Any]] = [{"max_inflight": 16}, {"max_inflight": 32, "auto": "off"}]
    for expected in stale:
        error = refused(desk.clear, "max_inflight", "auto", expected=expected)
        assert error.exit_code == EXIT_REFUSED and "this call expected" in error.fact
    assert refused(desk.clear, "auto", expected={"auto": "onn"}).fact == "auto 'onn' is no mode"
    assert desk.gate.limits.max_inflight == 32
    seen: dict[str, Any] = {"max_inflight": 32, "auto": "on"}
    assert desk.clear("max_inflight", "auto", expected=seen) == "max_inflight 32 → 64, auto on → off"


# --- pause and drain --------------------------------------------------------------------------------------------


async def test_a_pause_ends_by_itself_and_the_gate_knows_when(desk: Desk) -> None:
    assert desk.pause(for_s=600, reason="node check") == "paused for 10 m: node check"
    assert (desk.gate.limits.paused, desk.gate.limits.opens_in_s, desk.closed[-1]) == (True, 600, State.PAUSED)
    assert desk.throttle.is_closed
    desk.after(200)
    desk.set(hold_queue=7)
    assert desk.gate.limits.opens_in_s == 400  # counted from when it was put in force
    desk.after(400)
    assert (desk.gate.limits.paused, desk.gate.limits.opens_in_s, desk.closed[-1]) == (False, None, None)
    assert desk.events == [("throttle.returned", "resumed: the 10 m of ops are over")]


async def test_the_gate_is_told_what_comes_into_force_by_itself_and_when(desk: Desk) -> None:
    desk.set(max_inflight=16, for_s=600)
    desk.set(max_inflight=8, min_class="normal", for_s=60)
    desk.after(20)
    desk.set(hold_queue=7)
    limits = desk.gate.limits
    assert (limits.max_inflight, limits.min_class) == (8, "normal")
    told = [(in_s, then.max_inflight, then.min_class, then.hold_queue) for in_s, then in limits.later]
    assert told == [(40, 16, None, 7), (580, 64, None, 7)]
    desk.after(600)
    assert desk.gate.limits.later == ()


async def test_a_gate_that_several_have_closed_opens_with_the_last_of_them(desk: Desk) -> None:
    desk.pause(for_s=600)
    desk.set(who="maria", draining=True, for_s=900)
    assert (desk.gate.limits.opens_in_s, desk.closed[-1]) == (900, State.DRAINING)
    desk.pause(who="maria")
    assert desk.gate.limits.opens_in_s is None
    desk.after(900)
    assert (desk.gate.limits.paused, desk.gate.limits.draining, desk.closed[-1]) == (True, False, State.PAUSED)
    assert [text for _, text in desk.events] == ["draining no more: the 15 m of maria are over"]


async def test_who_pauses_is_told_that_nobody_may_wait(desk: Desk) -> None:
    desk.set(hold_queue=0)
    assert desk.pause() == "paused (hold_queue is 0: who comes is refused at once)"
    said = "still paused (hold_queue is 0: who comes is refused at once), max_inflight 64 → 3"
    assert desk.set(paused=True, max_inflight=3) == said


async def test_what_a_setting_is_made_over_is_told_where_an_operator_set_it(desk: Desk) -> None:
    desk.pause(who="root", reason="first")
    assert desk.pause(for_s=60, reason="second") == "still paused for 1 m (then paused as before, by root): second"
    then = desk.throttle.sheet().limits["paused"].then
    assert then == Former(value=True, who="root", reason="first", until=None)
    desk.set(who="maria", max_inflight=16, for_s=600)
    assert desk.set(max_inflight=8, for_s=60) == "max_inflight 16 → 8 for 1 m (then max_inflight 16 again, by maria)"
    limit = desk.throttle.sheet().limits["max_inflight"]
    assert limit.then == Former(value=16, who="maria", until=WALL + 700)
    assert desk.set(max_inflight=8) == "max_inflight stays 8"
    assert desk.throttle.sheet().limits["max_inflight"].then is None
    assert desk.set(hold_queue=8, for_s=60) == "hold_queue 256 → 8 for 1 m"  # the profile's returns
    assert desk.throttle.sheet().limits["hold_queue"].then == Former(value=256)
    desk.auto("observe", who="maria")
    assert desk.auto("on", for_s=60).endswith(" for 1 m (then auto observe again, by maria)")
    assert desk.throttle.sheet().auto.then == Former(value="observe", who="maria")


async def test_a_pause_over_a_pause_leaves_the_former_one(desk: Desk) -> None:
    desk.pause()
    assert desk.pause(for_s=60) == "still paused for 1 m (then paused as before, by ops)"
    desk.after(60)
    assert desk.gate.limits.paused


async def test_resume_ends_pause_and_drain_whoever_asked_for_them(desk: Desk) -> None:
    desk.pause(who="maria", for_s=600)
    desk.pause(who="maria")
    desk.set(draining=True)
    assert desk.resume("all clear") == "resumed, draining no more: all clear"
    assert not desk.throttle.is_closed and desk.closed[-1] is None
    assert desk.resume() == "neither paused nor draining"


async def test_taking_a_pause_back_by_set_is_nobodys_setting(desk: Desk) -> None:
    desk.pause()
    assert desk.set(paused=False) == "resumed"
    assert desk.throttle.sheet().limits["paused"].who is None


# --- another profile, another engine ----------------------------------------------------------------------------


async def test_another_profile_lies_under_what_was_set_by_hand_which_is_told(desk: Desk) -> None:
    desk.set(max_inflight=16, for_s=600)
    desk.set(who="maria", min_class="high")
    desk.throttle.attach(profile("b", max_inflight=32, hold_queue=8, auto={"mode": "observe"}))
    assert (desk.gate.limits.max_inflight, desk.gate.limits.hold_queue) == (16, 8)
    assert desk.gate.tables[-1].max_inflight == 32
    until = time.strftime("%H:%M:%S", time.localtime(WALL + 700))
    assert desk.events == [
        ("throttle.profile", "hold_queue 256 → 8, auto off → observe: as b says"),
        (
            "throttle.kept",
            f"still set by hand under b too: max_inflight 16, where the profile says 32 (ops, until {until}); "
            "min_class high, where the profile says none (maria, until it is cleared)",
        ),
    ]
    desk.after(600)
    assert desk.events[-1] == ("throttle.returned", "max_inflight 16 → 32: the 10 m of ops are over")


async def test_a_class_that_the_new_profile_does_not_know_is_no_limit_there(desk: Desk) -> None:
    desk.set(min_class="normal")
    desk.set(min_class="high", for_s=60)
    other = profile("b", max_inflight=64, classes=["bulk", "high"])
    assert desk.throttle.attach(other) == ["min_class high of ops has ended: b has the classes bulk, high"]
    assert desk.gate.limits.min_class is None
    assert desk.events == [("throttle.ended", "min_class high of ops has ended: b has the classes bulk, high")]
    assert desk.throttle.under(other) == ([], [])


async def test_it_is_told_before_what_would_stay_under_another_profile_and_what_would_end(desk: Desk) -> None:
    desk.set(max_inflight=16)
    desk.set(min_class="high")
    stays, ends = desk.throttle.under(profile("b", max_inflight=32, classes=["bulk", "chat"]))
    assert stays == ["max_inflight 16, where the profile says 32 (ops, until it is cleared)"]
    assert ends == [
        "min_class high, where the profile says none (ops, until it is cleared): b has the classes bulk, chat"
    ]
    assert desk.gate.limits.min_class == "high" and desk.events == []


async def test_it_survives_the_engine_and_ends_while_none_runs(desk: Desk) -> None:
    desk.set(max_inflight=16, for_s=600)
    desk.pause(reason="looking")
    desk.throttle.attach(profile(max_inflight=64))  # the same one, in a new engine
    assert (desk.gate.limits.max_inflight, desk.gate.limits.paused) == (16, True)
    assert desk.events[0][1].startswith("still set by hand in the new engine too: max_inflight 16")
    assert "paused (ops, until it is cleared)" in desk.events[0][1]
    desk.after(600)  # and no attach meanwhile: no engine need run
    assert desk.gate.limits.max_inflight == 64


async def test_another_engine_with_nothing_set_by_hand_is_no_event(desk: Desk) -> None:
    desk.throttle.attach(profile(max_inflight=64))
    assert desk.events == []


async def test_a_host_that_ends_leaves_no_timer(desk: Desk) -> None:
    desk.set(max_inflight=16, for_s=600)
    desk.throttle.close()
    assert desk.throttle._wake is None
