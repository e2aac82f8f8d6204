"""What is in force at the gate is what a plain reading of the log says, whatever operators, controller and profiles
have done and in whatever order."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from engine_host.throttle.limits import Limits

from .desk import Desk, profile

CAPS = st.one_of(st.none(), st.integers(1, 100))
SPANS = st.one_of(st.none(), st.integers(1, 60))
STEPS = st.one_of(
    st.tuples(st.just("wait"), st.integers(0, 40)),
    st.tuples(st.just("set"), CAPS, SPANS),
    st.tuples(st.just("pause"), SPANS),
    st.tuples(st.just("resume")),
    st.tuples(st.just("clear")),
    st.tuples(st.just("auto"), st.sampled_from(["off", "observe", "on"]), SPANS),
    st.tuples(st.just("propose"), CAPS),
    st.tuples(st.just("attach"), CAPS),
)


class Log:
    """The plain reading: every setting with its end, the youngest that has not ended counts."""

    def __init__(self) -> None:
        self.now = 0.0
        self.own: int | None = None
        self.said: dict[str, list[tuple[Any, float | None]]] = {"cap": [], "paused": [], "mode": []}
        self.auto: int | None = None
        self._mode_was: Any = "off"

    def put(self, what: str, value: Any, span: int | None) -> None:
        self.said[what].append((value, None if span is None else self.now + span))

    def value(self, what: str, otherwise: Any) -> Any:
        found = otherwise
        for value, ends in self.said[what]:
            if ends is None or ends > self.now:
                found = value
        return found

    def see_mode(self) -> None:
        """A cap of the controller's does not outlive its mode."""
        mode = self.value("mode", "off")
        if mode != self._mode_was:
            self.auto = None
        self._mode_was = mode

    @property
    def cap(self) -> int | None:
        unset = object()
        by_hand = self.value("cap", unset)
        if by_hand is not unset:
            return by_hand  # type: ignore[no-any-return]
        if self.value("mode", "off") != "on" or self.auto is None:
            return self.own
        return self.auto if self.own is None else min(self.auto, self.own)


@given(st.lists(STEPS, max_size=25))
@settings(deadline=None, max_examples=150)
def test_the_gate_goes_by_the_youngest_that_holds(steps: list[tuple[Any, ...]]) -> None:
    async def play() -> None:
        desk, log = Desk(), Log()
        log.now = desk.now
        for what, *rest in steps:
            match what:
                case "wait":
                    # In steps, as the timer would: each end is seen when it comes.
                    for _ in range(rest[0]):
                        log.now += 1
                        log.see_mode()
                        desk.after(1)
                case "set":
                    desk.set(max_inflight=rest[0], for_s=rest[1])
                    log.put("cap", *rest)
                case "pause":
                    desk.pause(for_s=rest[0])
                    log.put("paused", True, rest[0])
                case "resume":
                    desk.resume()
                    log.said["paused"] = []
                case "clear":
                    desk.clear()
                    log.said = {"cap": [], "paused": [], "mode": []}
                case "auto":
                    desk.auto(*rest)
                    log.put("mode", *rest)
                case "propose":
                    desk.throttle.propose(rest[0], "")
                    log.auto = rest[0] if log.value("mode", "off") != "off" else None
                case "attach":
                    desk.throttle.attach(profile("b", max_inflight=rest[0]))
                    log.own = rest[0]
            log.see_mode()
            limits = desk.gate.limits
            assert (limits.max_inflight, limits.paused) == (log.cap, log.value("paused", False))
        desk.clear()
        desk.throttle.propose(None, "")
        assert desk.gate.limits == Limits(max_inflight=log.own)
        desk.after(1000)
        assert desk.gate.limits == Limits(max_inflight=log.own)
        desk.throttle.close()

    asyncio.run(play())
