"""The pilot: what of a host the controller is shown, and what becomes of its answers."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from engine_host.engine.dials import Dials
from engine_host.engine.port import StepStats
from engine_host.live.dial import DialName
from engine_host.profiles import build_profile
from engine_host.profiles.throttle_table import Auto
from engine_host.protocol.methods import DialsSet
from engine_host.protocol.throttling import AutoMode
from engine_host.telemetry.store import TelemetryStore
from engine_host.throttle import pilot as room
from engine_host.throttle.auto import AutoController
from engine_host.throttle.auto_dials import AutoDials
from engine_host.throttle.pilot import Pilot
from tests.unit.scripted_engine import ScriptedEngine
from tests.unit.scripted_scheduler import ScriptedScheduler
from tests.unit.throttle.desk import Desk, profile
from tests.unit.world import PROFILE

SEQS, K = DialName.MAX_ACTIVE_SEQS, DialName.SPECULATIVE_TOKENS
SETTINGS = Auto(mode="on", dwell_s=1.0, decrease=0.5, kv_enter=0.9, kv_leave=0.8, ttft_p95_enter_s=2.0)


@dataclass
class ScriptedPolicy:
    auto_settings: Auto = SETTINGS
    auto_mode: AutoMode = AutoMode.ON
    auto_mode_moves: int = 0
    auto_overruled_by: str | None = None
    bound: int | None = None
    is_closed: bool = False
    proposed: list[tuple[int | None, str]] = field(default_factory=list)

    def propose(self, cap: int | None, text: str) -> None:
        self.proposed.append((cap, text))


@dataclass
class ScriptedGate:
    inflight: int = 64
    held: int = 0


class Cockpit:
    """A pilot over a scripted host, whose time passes when a test says so."""

    def __init__(self, settings: Auto = SETTINGS) -> None:
        self.now = 1000.0
        self.policy, self.gate = ScriptedPolicy(settings), ScriptedGate()
        self.scheduler = ScriptedScheduler()
        self.engine: ScriptedEngine | None = ScriptedEngine(unfinished=64, scheduler=self.scheduler)
        self.store = TelemetryStore(self.clock)
        self.events: list[tuple[str, str]] = []
        self.dials = Dials(self.on_event)
        self.pilot = Pilot(
            self.policy,
            self.gate,
            self.store,
            lambda: self.engine,
            AutoDials(self.dials, self.on_event),
            self.on_event,
            self.clock,
        )
        self.pilot.look()

    def clock(self) -> float:
        return self.now

    def on_event(self, kind: str, text: str, **_: Any) -> None:
        self.events.append((kind, text))

    def steps(self, seconds: float, **values: Any) -> None:
        """A tenth of a second each, with a look of the timer now and then; `values` are the engine's."""
        given = {"running": 64, "waiting": 0, "kv_usage": 0.5, "generation_tokens": 64} | values
        for index in range(round(seconds * 10)):
            self.now += 0.1
            step = StepStats(0, **given)
            self.store.record(step)
            self.pilot.on_step(step)
            if index % 3 == 2:
                self.pilot.look()

    def silence(self, seconds: float) -> None:
        for _ in range(round(seconds * 4)):
            self.now += 0.25
            self.pilot.look()


@pytest.fixture
def cockpit() -> Cockpit:
    return Cockpit()


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"kv_usage": 0.94}, "KV 94 %"),
        ({"waiting": 12, "waiting_deferred": 3}, "12 waiting"),
        ({"preemptions": 1}, "preemptions/s"),
        ({"ttft_s": [4.0]}, "TTFT p95 4"),
    ],
)
def test_the_controller_sees_every_figure_of_the_steps(cockpit: Cockpit, values: dict[str, Any], why: str) -> None:
    cockpit.gate.inflight = 80
    cockpit.steps(15.0, **values)
    (cap, text), *_ = cockpit.policy.proposed
    assert cap is not None and why in text


def test_who_waits_for_something_else_than_room_does_not_count(cockpit: Cockpit) -> None:
    cockpit.steps(15.0, waiting_deferred=50)
    assert cockpit.policy.proposed == []


def test_preemptions_are_counted_over_seconds_not_over_the_consoles_window(cockpit: Cockpit) -> None:
    cockpit.steps(0.5, preemptions=2)
    cockpit.steps(0.1)
    assert cockpit.pilot.gauges()[2].value == pytest.approx(10 / 3)
    cockpit.steps(3.0)
    assert cockpit.pilot.gauges()[2].value == 0.0


def test_a_percentile_of_a_handful_of_first_tokens_says_nothing(cockpit: Cockpit) -> None:
    cockpit.steps(0.4, ttft_s=[9.0])
    cockpit.steps(5.0)
    assert cockpit.policy.proposed == []
    assert cockpit.pilot.gauges()[3].value is None


def test_a_mass_abort_lets_go(cockpit: Cockpit) -> None:
    """Field case 5, from the host's figures: the last step said 90.4 %, then none came any more."""
    cockpit.steps(3.0, running=106, kv_usage=0.904)
    assert cockpit.pilot.cap == 32
    assert cockpit.engine is not None
    cockpit.engine.unfinished = cockpit.gate.inflight = 0
    cockpit.silence(2.0)
    assert cockpit.policy.proposed[-1] == (None, "no request is left in the engine: cap 32 → none")


def test_another_engine_begins_afresh(cockpit: Cockpit) -> None:
    cockpit.steps(3.0, kv_usage=0.95)
    cockpit.engine = ScriptedEngine(unfinished=64)
    cockpit.silence(0.25)
    assert cockpit.policy.proposed[-1] == (None, "another engine serves: cap 32 → none")
    assert cockpit.pilot.gauges()[0].value is None, "what the former one said is not this one's"


def test_without_an_engine_there_is_no_cap(cockpit: Cockpit) -> None:
    cockpit.steps(3.0, kv_usage=0.95)
    cockpit.engine = None
    cockpit.silence(0.25)
    assert cockpit.policy.proposed[-1] == (None, "no engine serves: cap 32 → none")


def test_an_operators_cap_takes_it_out_and_it_comes_back(cockpit: Cockpit) -> None:
    cockpit.steps(3.0, kv_usage=0.95)
    cockpit.policy.auto_overruled_by = "maria"
    cockpit.steps(10.0, kv_usage=0.95)
    assert [cap for cap, _ in cockpit.policy.proposed] == [32, None]
    assert cockpit.policy.proposed[-1][1] == "maria has set a cap: cap 32 → none"
    cockpit.policy.auto_overruled_by = None
    cockpit.steps(0.5, kv_usage=0.95)
    assert cockpit.pilot.cap is None, "the dwell time begins when it may act"
    cockpit.steps(2.0, kv_usage=0.95)
    assert cockpit.pilot.cap == 32


def test_off_does_nothing_and_takes_back_what_was_done(cockpit: Cockpit) -> None:
    cockpit.steps(3.0, kv_usage=0.95)
    cockpit.policy.auto_mode = AutoMode.OFF
    cockpit.steps(10.0, kv_usage=0.99)
    assert [cap for cap, _ in cockpit.policy.proposed] == [32, None]


def test_from_on_to_observe_the_cap_goes(cockpit: Cockpit) -> None:
    cockpit.steps(3.0, kv_usage=0.95)
    cockpit.policy.auto_mode = AutoMode.OBSERVE
    cockpit.steps(0.1)
    assert cockpit.policy.proposed[-1] == (None, "automatic throttling is set to observe: cap 32 → none")


def test_a_cap_that_was_only_thought_of_is_not_told_as_one_in_force(cockpit: Cockpit) -> None:
    cockpit.policy.auto_mode = AutoMode.OBSERVE
    cockpit.steps(3.0, kv_usage=0.95)
    assert cockpit.pilot.cap == 32
    cockpit.policy.auto_mode = AutoMode.ON
    cockpit.steps(0.1)
    given_up = "the cap of 32 that would have been is given up"
    assert cockpit.policy.proposed[-1] == (None, f"automatic throttling is set to on: {given_up}")
    cockpit.policy.auto_mode = AutoMode.OBSERVE
    cockpit.steps(3.0, kv_usage=0.95)
    cockpit.policy.auto_overruled_by = "maria"
    cockpit.steps(0.1)
    assert cockpit.policy.proposed[-1] == (None, f"maria has set a cap: {given_up}")


async def test_off_and_on_again_before_it_looks_is_seen_and_it_begins_afresh(cockpit: Cockpit) -> None:
    """It would take the cap that went with `off` for one in force, and never cut below it."""
    auto = {"mode": "on", "dwell_s": 1.0, "decrease": 0.5, "kv_enter": 0.9, "kv_leave": 0.8}
    desk = Desk(profile(auto=auto))
    cockpit.pilot._policy = desk.throttle
    cockpit.steps(3.0, kv_usage=0.95)
    assert desk.gate.limits.max_inflight == cockpit.pilot.cap == 32
    desk.auto("off")
    desk.auto("on")
    cockpit.steps(0.1, kv_usage=0.95)
    assert desk.gate.limits.max_inflight is None and cockpit.pilot.cap is None
    assert desk.events[-1] == ("throttle.auto", "automatic throttling is set to on: cap 32 → none")
    cockpit.steps(2.0, kv_usage=0.95)
    assert desk.gate.limits.max_inflight == cockpit.pilot.cap == 32


def test_a_profile_reloaded_with_other_thresholds_is_followed(cockpit: Cockpit) -> None:
    cockpit.steps(3.0, kv_usage=0.85)
    assert cockpit.policy.proposed == []
    cockpit.policy.auto_settings = msgspec.structs.replace(SETTINGS, kv_enter=0.8, kv_leave=0.7)
    cockpit.steps(3.0, kv_usage=0.85)
    assert cockpit.pilot.cap == 32


def test_a_controller_that_fails_is_taken_out_and_the_engine_goes_on(
    cockpit: Cockpit, monkeypatch: pytest.MonkeyPatch
) -> None:
    cockpit.steps(3.0, kv_usage=0.95)

    def fail(*_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(AutoController, "step", fail)
    cockpit.steps(3.0, kv_usage=0.95)
    assert cockpit.policy.proposed[-1][0] is None
    assert [kind for kind, _ in cockpit.events] == ["throttle.auto.failed"]


def test_a_step_costs_microseconds(cockpit: Cockpit) -> None:
    """It is taken on the event loop that hands out tokens."""
    import time

    step = StepStats(0, running=64, waiting=3, kv_usage=0.5, generation_tokens=64)
    best = min(_timed(cockpit, step, time.perf_counter) for _ in range(20))
    assert best < 100e-6


def _timed(cockpit: Cockpit, step: StepStats, clock: Any) -> float:
    began = clock()
    for _ in range(100):
        cockpit.pilot.on_step(step)
    return float(clock() - began) / 100


# --- dials ---------------------------------------------------------------------------------------------------------


@pytest.fixture
async def with_dials(monkeypatch: pytest.MonkeyPatch) -> Cockpit:
    monkeypatch.setattr(room, "LOOK_EVERY_S", 0.001)
    names: list[Any] = ["max_active_seqs", "speculative_tokens"]
    cockpit = Cockpit(msgspec.structs.replace(SETTINGS, dials=names))
    assert cockpit.engine is not None
    cockpit.dials.attach(cockpit.engine, PROFILE)
    return cockpit


async def settle(cockpit: Cockpit) -> None:
    task = asyncio.create_task(cockpit.pilot.run())
    await asyncio.sleep(0.05)
    task.cancel()
    await asyncio.wait({task})


async def maria(cockpit: Cockpit, name: DialName, value: int) -> None:
    await cockpit.dials.set(DialsSet(values={name: value}, idempotency_key="k"), "maria")


async def test_dials_follow_the_cap_and_return_with_it(with_dials: Cockpit) -> None:
    with_dials.steps(3.0, kv_usage=0.95)
    await settle(with_dials)
    dials = with_dials.dials.read()
    assert (dials[SEQS].value, dials[K].value) == (32, 2), "half of five, and the cap itself"
    assert dials[SEQS].who == "auto"
    assert dials[SEQS].reason.startswith("KV 95 %")
    with_dials.policy.auto_mode = AutoMode.OFF
    await settle(with_dials)
    dials = with_dials.dials.read()
    assert (dials[SEQS].value, dials[K].value) == (256, 5)
    assert dials[SEQS].who is None
    assert [kind for kind, _ in with_dials.events] == ["throttle.auto.dials"] * 2


async def test_dials_return_though_the_controller_fails_at_every_look(
    with_dials: Cockpit, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_dials.steps(3.0, kv_usage=0.95)
    await settle(with_dials)
    assert with_dials.dials.read()[SEQS].value == 32

    def fail(*_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(ScriptedEngine, "backlog", fail)
    await settle(with_dials)
    assert with_dials.dials.read()[SEQS].value == 256
    assert [kind for kind, _ in with_dials.events].count("throttle.auto.failed") == 1


async def test_an_operators_dial_is_left_alone(with_dials: Cockpit) -> None:
    await maria(with_dials, SEQS, 200)
    with_dials.steps(3.0, kv_usage=0.95)
    await settle(with_dials)
    assert with_dials.dials.read()[SEQS].value == 200
    assert with_dials.dials.read()[K].value == 2
    with_dials.policy.auto_mode = AutoMode.OFF
    await settle(with_dials)
    assert with_dials.dials.read()[SEQS].value == 200


async def test_an_operator_takes_a_dial_over_from_it(with_dials: Cockpit) -> None:
    with_dials.steps(3.0, kv_usage=0.95)
    await settle(with_dials)
    await maria(with_dials, K, 4)
    await settle(with_dials)
    assert with_dials.dials.read()[K].value == 4


async def test_observing_turns_no_dial(with_dials: Cockpit) -> None:
    with_dials.policy.auto_mode = AutoMode.OBSERVE
    with_dials.steps(3.0, kv_usage=0.95)
    await settle(with_dials)
    assert with_dials.pilot.cap == 32
    assert with_dials.scheduler.applied == []


async def test_a_dial_that_is_not_asked_for_stays(with_dials: Cockpit) -> None:
    with_dials.policy.auto_settings = msgspec.structs.replace(SETTINGS, dials=["speculative_tokens"])
    with_dials.steps(3.0, kv_usage=0.95)
    await settle(with_dials)
    assert with_dials.dials.read()[SEQS].value == 256


async def test_what_it_set_does_not_outlive_it_in_the_next_engine(with_dials: Cockpit) -> None:
    """Dials outlive a crash of their engine; those of the controller's must not, since it begins afresh."""
    with_dials.steps(3.0, kv_usage=0.95)
    await settle(with_dials)
    with_dials.engine = ScriptedEngine(unfinished=0, scheduler=ScriptedScheduler())
    await with_dials.dials.prepare(with_dials.engine, PROFILE)
    with_dials.dials.attach(with_dials.engine, PROFILE)
    await settle(with_dials)
    assert with_dials.dials.read()[SEQS].value == 256


async def test_an_engine_without_dials_is_no_trouble(with_dials: Cockpit) -> None:
    with_dials.dials.attach(ScriptedEngine(), build_profile({"schema": 1, "engine": {"model": "m"}}, PROFILE.path))
    with_dials.steps(3.0, kv_usage=0.95)
    await settle(with_dials)
    assert with_dials.pilot.cap == 32
    assert with_dials.events == []


async def test_dials_that_are_refused_are_told_once(with_dials: Cockpit) -> None:
    with_dials.scheduler.does_not_answer = True
    with_dials.steps(3.0, kv_usage=0.95)
    await settle(with_dials)
    assert len(with_dials.events) == 1
    assert "does not answer" in with_dials.events[0][1] or "did not answer" in with_dials.events[0][1]
