"""The dials of an engine: set, refused, given back, and what becomes of them with another engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from console.consequence import DIAL_DEADLINE_S
from engine_host.engine import dials as room
from engine_host.engine.dials import Dials
from engine_host.engine.vllm.live import cores
from engine_host.live.dial import DialName, DialRange
from engine_host.profiles import Profile, build_profile
from engine_host.protocol.errors import EXIT_FAILED, EXIT_INVALID, EXIT_REFUSED, EXIT_TIMED_OUT, OperatorError
from engine_host.protocol.methods import DialsSet

from .scripted_engine import ScriptedEngine
from .scripted_scheduler import RANGES, ScriptedScheduler, live_sample

K = DialName.SPECULATIVE_TOKENS
SEQS = DialName.MAX_ACTIVE_SEQS


def profile(name: str = "a", **dials: int) -> Profile:
    return build_profile({"schema": 1, "engine": {"model": "m"}, "dials": dials}, Path(f"{name}.toml"))


class Desk:
    """Dials over a scripted engine, and what was told of them."""

    def __init__(self, *, at: Profile | None = None, ranges: dict[DialName, DialRange] | None = None) -> None:
        self.events: list[tuple[str, str]] = []
        self.dials = Dials(lambda kind, text, **_: self.events.append((kind, text)))
        self.scheduler = ScriptedScheduler(ranges or dict(RANGES))
        self.profile = at or profile()

    async def serve(self, at: Profile | None = None, ranges: dict[DialName, DialRange] | None = None) -> None:
        """A new engine comes up and serves."""
        self.scheduler = ScriptedScheduler(ranges or dict(RANGES))
        self.profile = at or self.profile
        engine = ScriptedEngine(scheduler=self.scheduler)
        await self.dials.prepare(engine, self.profile)
        self.dials.attach(engine, self.profile)

    async def set(
        self,
        name: DialName = K,
        value: int | None = 2,
        *,
        for_s: float | None = None,
        expected: dict[str, int] | None = None,
        reason: str = "",
        who: str = "maria",
    ) -> str:
        # Built without its bounds: a test has no second to wait for a setting to end.
        order = DialsSet(values={name: value}, for_s=for_s, expected=expected, reason=reason, idempotency_key="k")
        return await self.dials.set(order, who)

    def value(self, name: DialName = K) -> int:
        return self.dials.read()[name].value

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not condition():
                await asyncio.sleep(0.005)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "RETRY_S", 0.01)


@pytest.fixture
async def desk() -> Desk:
    desk = Desk()
    await desk.serve()
    return desk


async def refused(setting: Any) -> OperatorError:
    with pytest.raises(OperatorError) as caught:
        await setting
    return caught.value


# --- setting ----------------------------------------------------------------------------------------------------


async def test_a_dial_shows_its_range_and_who_set_it_why_and_until_when(desk: Desk) -> None:
    assert await desk.set(value=2, for_s=600, reason="trying") == "speculative_tokens 5 → 2 for 10 m: trying"
    dial = desk.dials.read()[K]
    assert (dial.value, dial.low, dial.high, dial.start) == (2, 0, 5, 5)
    assert (dial.who, dial.reason) == ("maria", "trying")
    assert dial.since is not None
    assert dial.until == dial.since + 600
    assert desk.scheduler.in_force[K] == 2


async def test_it_is_acknowledged_once_the_scheduler_has_applied_it(desk: Desk) -> None:
    desk.scheduler.may_apply.clear()
    setting = asyncio.create_task(desk.set(value=2))
    await asyncio.sleep(0)
    assert not setting.done()
    assert desk.value() == 5
    desk.scheduler.may_apply.set()
    await setting
    assert desk.value() == 2


async def test_back_to_the_start_is_nobodys_setting(desk: Desk) -> None:
    await desk.set(value=2)
    assert await desk.set(value=None) == "speculative_tokens 2 → 5 (its start)"
    assert (desk.value(), desk.dials.read()[K].who) == (5, None)


async def test_several_are_set_at_once_or_none(desk: Desk) -> None:
    both = DialsSet(values={"speculative_tokens": 1, "max_active_seqs": 999}, idempotency_key="k")
    assert (await refused(desk.dials.set(both, "maria"))).exit_code == EXIT_INVALID
    assert desk.scheduler.applied == []
    both = DialsSet(values={"speculative_tokens": 1, "max_active_seqs": 9}, idempotency_key="k")
    assert await desk.dials.set(both, "maria") == "speculative_tokens 5 → 1, max_active_seqs 256 → 9"
    assert desk.scheduler.applied == [{K: 1, SEQS: 9}]


@pytest.mark.parametrize("value", [-1, 6])
async def test_a_value_that_the_engine_does_not_take_is_refused_with_the_range(desk: Desk, value: int) -> None:
    error = await refused(desk.set(value=value))
    assert error.exit_code == EXIT_INVALID
    assert error.fact == f"speculative_tokens {value} is out of range: this engine takes 0 to 5"
    assert desk.scheduler.applied == []


async def test_a_misspelt_dial_is_refused_with_the_nearest(desk: Desk) -> None:
    order = DialsSet(values={"speculative_token": 1}, idempotency_key="k")
    error = await refused(desk.dials.set(order, "maria"))
    assert (error.exit_code, error.remedy) == (EXIT_INVALID, 'did you mean "speculative_tokens"?')


async def test_a_dial_that_this_engine_lacks_is_refused_with_the_reason() -> None:
    desk = Desk()
    await desk.serve(ranges={SEQS: RANGES[SEQS]})
    error = await refused(desk.set(value=1))
    assert error.fact == "this engine has no dial speculative_tokens: it has no speculation"
    desk.scheduler.missing = {K: "vLLM drafts a fixed number with data parallelism"}
    assert "vLLM drafts a fixed number" in (await refused(desk.set(value=1))).fact


async def test_without_a_scheduler_to_reach_there_are_no_dials_and_the_reason_is_told() -> None:
    desk = Desk()
    desk.dials.attach(ScriptedEngine(scheduler="vLLM 0.40 is newer than what is known here"), profile())
    sheet = desk.dials.sheet()
    assert (sheet.dials, sheet.unavailable_reason) == ({}, "vLLM 0.40 is newer than what is known here")
    error = await refused(desk.set())
    assert error.exit_code == EXIT_REFUSED
    assert "vLLM 0.40 is newer" in error.fact


async def test_without_an_engine_there_are_none(desk: Desk) -> None:
    desk.dials.detach()
    assert desk.dials.sheet().unavailable_reason == "no engine is running"
    assert (await refused(desk.set())).exit_code == EXIT_REFUSED


# --- two operators ----------------------------------------------------------------------------------------------


async def test_a_stale_expectation_is_refused_with_the_value_in_force(desk: Desk) -> None:
    await desk.set(value=2, who="bob")
    error = await refused(desk.set(value=3, expected={"speculative_tokens": 5}))
    assert error.exit_code == EXIT_REFUSED
    assert error.fact == "speculative_tokens is 2 (set by bob); this call expected 5"
    assert desk.value() == 2
    await desk.set(value=3, expected={"speculative_tokens": 2})
    assert desk.value() == 3


async def test_of_two_who_saw_the_same_value_one_wins(desk: Desk) -> None:
    seen = {"speculative_tokens": 5}
    outcomes = await asyncio.gather(
        desk.set(value=1, expected=seen), desk.set(value=2, expected=seen, who="bob"), return_exceptions=True
    )
    assert outcomes[0] == "speculative_tokens 5 → 1"
    assert isinstance(outcomes[1], OperatorError)
    assert desk.scheduler.applied == [{K: 1}]


# --- settings that end ------------------------------------------------------------------------------------------


async def test_the_former_value_returns_and_is_told(desk: Desk) -> None:
    await desk.set(value=3)
    await desk.set(value=2, for_s=0.03)
    await desk.until(lambda: desk.scheduler.in_force[K] == 3)
    await desk.until(lambda: bool(desk.events))
    assert desk.events == [("dials.returned", "speculative_tokens 2 → 3: the 0.03 s of maria are over")]
    assert desk.dials.read()[K].until is None


async def test_settings_end_one_within_the_other(desk: Desk) -> None:
    await desk.set(value=3, for_s=0.12)
    await desk.set(value=2, for_s=0.04, who="bob")
    await desk.until(lambda: desk.value() == 3)
    assert desk.dials.read()[K].who == "maria"
    await desk.until(lambda: desk.value() == 5)
    assert [values[K] for values in desk.scheduler.applied] == [3, 2, 3, 5]


async def test_a_value_that_would_have_ended_and_now_stays_is_told_so(desk: Desk) -> None:
    await desk.set(value=2, for_s=600)
    assert await desk.set(value=2, for_s=60) == "speculative_tokens stays 2 for 1 m"
    assert await desk.set(value=2) == "speculative_tokens stays 2 for good"
    assert await desk.set(value=2) == "speculative_tokens stays 2"


async def test_a_setting_that_stays_ends_those_that_would_pass(desk: Desk) -> None:
    await desk.set(value=2, for_s=0.03)
    await desk.set(value=4)
    await desk.set(SEQS, 9, for_s=0.06)
    await desk.until(lambda: desk.value(SEQS) == 256)  # later than the first would have ended
    assert desk.value() == 4


# --- a scheduler that does not answer ---------------------------------------------------------------------------


async def test_an_answer_that_does_not_come_is_an_unknown_outcome(desk: Desk) -> None:
    desk.scheduler.newest = [live_sample(dials=desk.scheduler.in_force)]
    desk.scheduler.does_not_answer = True
    error = await refused(desk.set(value=2))
    assert error.exit_code == EXIT_TIMED_OUT
    assert error.fact == ("the outcome is unknown: speculative_tokens 5 → 2: engine core 0 did not answer within 5 s")
    assert desk.value() == 5  # as the scheduler itself says


async def test_one_that_answers_again_is_told_again(desk: Desk) -> None:
    desk.scheduler.newest = [live_sample(dials=dict(desk.scheduler.in_force))]
    desk.scheduler.does_not_answer = True
    await refused(desk.set(value=2))
    desk.scheduler.does_not_answer = False
    await desk.until(lambda: desk.value() == 2)
    assert desk.scheduler.in_force[K] == 2
    assert desk.events == [("dials.late", "speculative_tokens 5 → 2: the scheduler answers again")]


async def test_a_value_that_cannot_return_yet_is_told_once_and_returns_later(desk: Desk) -> None:
    await desk.set(value=2, for_s=0.02)
    desk.scheduler.newest = [live_sample(dials=dict(desk.scheduler.in_force))]
    desk.scheduler.does_not_answer = True
    await desk.until(lambda: bool(desk.events))
    await asyncio.sleep(0.05)  # several attempts
    assert [kind for kind, _ in desk.events] == ["dials.unanswered"]
    desk.scheduler.does_not_answer = False
    await desk.until(lambda: desk.scheduler.in_force[K] == 5)


async def test_an_engine_that_ends_meanwhile_leaves_nothing_set(desk: Desk) -> None:
    desk.scheduler.may_apply.clear()
    setting = asyncio.create_task(desk.set(value=2))
    await asyncio.sleep(0)
    former = desk.scheduler
    await desk.serve()
    former.may_apply.set()
    assert (await refused(setting)).exit_code == EXIT_FAILED
    assert desk.value() == 5


async def test_a_scheduler_that_can_no_longer_be_reached_has_no_dials(desk: Desk) -> None:
    await desk.set(value=2, for_s=0.02)
    assert desk.dials._engine is not None
    desk.dials._engine.scheduler = "engine core 0: its state cannot be read"  # type: ignore[attr-defined]
    assert desk.dials.read() == {}
    assert (await refused(desk.set())).fact == "there are no dials: engine core 0: its state cannot be read"
    await asyncio.sleep(0.05)  # the setting ends meanwhile
    assert desk.events == []


# --- another engine ---------------------------------------------------------------------------------------------


async def test_after_a_crash_what_holds_is_set_again_before_requests_come(desk: Desk) -> None:
    await desk.set(value=2, for_s=600)
    await desk.set(SEQS, 200, who="bob")
    desk.dials.detach()
    await desk.serve(ranges={**RANGES, SEQS: DialRange(1, 128, 128)})
    assert desk.scheduler.applied == [{K: 2}]  # 128 is its start
    assert (desk.value(), desk.dials.read()[K].who) == (2, "maria")
    assert desk.value(SEQS) == 128
    assert desk.events == [
        ("dials.kept", "max_active_seqs 200 → 128: the new engine takes 1 to 128"),
        ("dials.kept", "speculative_tokens is 2 in the new engine too, as maria set it"),
    ]


async def test_what_ends_while_no_engine_runs_is_not_set_again(desk: Desk) -> None:
    await desk.set(value=2, for_s=0.02)
    desk.dials.detach()
    await asyncio.sleep(0.03)
    await desk.serve()
    assert desk.scheduler.applied == []
    assert desk.value() == 5
    assert desk.events == [
        ("dials.kept", "speculative_tokens is 5 in the new engine: the 0.02 s of maria are over"),
    ]
    await desk.set(value=3)
    desk.dials.detach()
    await desk.serve()
    assert desk.events[1:] == [("dials.kept", "speculative_tokens is 3 in the new engine too, as maria set it")]


async def test_another_profile_begins_at_its_own(desk: Desk) -> None:
    await desk.set(value=2)
    await desk.serve(profile("b", max_active_seqs=64))
    assert (desk.value(), desk.value(SEQS)) == (5, 64)
    assert desk.scheduler.applied == [{SEQS: 64}]
    assert desk.events == [("dials.reset", "speculative_tokens 2 → 5: b begins at its own")]


async def test_the_same_engine_under_another_profile_is_told_only_what_changes(desk: Desk) -> None:
    await desk.set(value=2)
    engine = desk.dials._engine
    assert engine is not None
    await desk.dials.prepare(engine, profile("b", speculative_tokens=1))
    desk.dials.attach(engine, profile("b", speculative_tokens=1))
    assert desk.scheduler.applied == [{K: 2}, {K: 1}]
    assert desk.dials.read()[K].start == 1


@pytest.mark.parametrize(
    ("dials", "fact"),
    [
        ({"speculative_tokens": 9}, "a.toml: dials.speculative_tokens = 9: this engine takes 0 to 5"),
        ({"max_active_seqs": 300}, "a.toml: dials.max_active_seqs = 300: this engine takes 1 to 256"),
    ],
)
async def test_a_profile_that_asks_for_too_much_is_refused(dials: dict[str, int], fact: str) -> None:
    error = await refused(Desk().serve(profile("a", **dials)))
    assert error.fact == fact


async def test_a_profile_that_asks_for_a_dial_that_the_engine_lacks_is_refused_with_the_reason() -> None:
    desk = Desk()
    engine = ScriptedEngine(scheduler=ScriptedScheduler({SEQS: RANGES[SEQS]}, missing={K: "K is fixed here"}))
    error = await refused(desk.dials.prepare(engine, profile("a", speculative_tokens=2)))
    assert (error.fact, error.remedy) == ("a.toml: dials.speculative_tokens = 2: K is fixed here",
                                          "remove dials.speculative_tokens")  # fmt: skip


async def test_a_profiles_dials_that_cannot_be_applied_are_told() -> None:
    desk = Desk()
    engine = ScriptedEngine(scheduler="vLLM 0.40 is too new")
    await desk.dials.prepare(engine, profile("a", speculative_tokens=2))
    desk.dials.attach(engine, profile("a", speculative_tokens=2))
    assert [text for _, text in desk.events] == ["the dials of a are not applied: vLLM 0.40 is too new"]


def test_a_profile_names_the_dials_there_are() -> None:
    from engine_host.profiles.shape import Dials as Table

    assert set(Table.__struct_fields__) == set(DialName)


def test_a_console_waits_longer_than_two_changes_one_after_the_other_can_take() -> None:
    """The schedulers give up first, then the dials, then whoever asked: each with more to say than the next."""
    assert cores._ANSWER_S < room.ANSWER_S
    assert 2 * room.ANSWER_S < DIAL_DEADLINE_S
