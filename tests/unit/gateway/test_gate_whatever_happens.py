"""Whatever comes, leaves and is told to the gate in whichever order: the cap holds, and nobody is lost or hangs."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from engine_host.engine.port import AsgiApp
from engine_host.gateway.asked import Asked
from engine_host.gateway.unavailable import Unavailable
from engine_host.throttle.limits import Limits
from tests.unit.gateway.clients import BY_HEADER, Client, Model, Served, turns

LIMITS = st.builds(
    Limits,
    max_inflight=st.none() | st.integers(1, 6),
    request_rate=st.none() | st.floats(0.1, 5.0),
    request_burst=st.none() | st.integers(1, 5),
    hold_queue=st.integers(0, 6),
    hold_deadline_s=st.floats(0.0, 20.0),
    min_class=st.sampled_from([None, "normal", "high"]),
    paused=st.booleans(),
    draining=st.sampled_from([False, False, False, True]),
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.tuples(st.sampled_from(["low", "normal", "high"]), st.integers(1, 8))),
        st.tuples(st.just("finish"), st.integers(0, 50)),
        st.tuples(st.sampled_from(["hang up", "cancel"]), st.integers(0, 50)),
        st.tuples(st.just("wait"), st.floats(0.0, 10.0)),
        st.tuples(st.just("apply"), LIMITS),
        st.tuples(st.sampled_from(["switch", "detach", "attach"]), st.none()),
    ),
    max_size=60,
)


class Story:
    """What has happened so far, and what must hold at every moment of it."""

    def __init__(self) -> None:
        self.served = Served(table=BY_HEADER)
        self.served.gate.prepare = self._prepare
        self.models = [self.served.model]
        self.clients: list[Client] = []
        self.strange: list[Asked] = []
        """Answered by another app than they were prepared for."""

    async def _prepare(self, app: AsgiApp, asked: Asked) -> Asked:
        await asyncio.sleep(0)

        def through(serving: AsgiApp) -> AsgiApp:
            if serving is not app:
                self.strange.append(asked)
            return serving

        return replace(asked, through=through)

    async def step(self, what: str, how: Any) -> None:
        served, open_clients = self.served, [client for client in self.clients if not client.is_done]
        before = served.gate.inflight
        if what == "ask":
            class_name, choices = how
            client = Client(served.entry, {"n": choices}, headers={"x-class": class_name})
            self.clients.append(client.start())
        elif what == "finish":
            running = [model for model in self.models if model.running]
            if running:
                running[how % len(running)].finish()
        elif what == "hang up" and open_clients:
            open_clients[how % len(open_clients)].hang_up()
        elif what == "cancel" and open_clients:
            task = open_clients[how % len(open_clients)].task
            assert task is not None
            task.cancel()
        elif what == "wait":
            await served.pass_time(how)
        elif what == "apply":
            served.gate.apply(how)
        elif what == "detach":
            served.entry.detach(Unavailable("dead", "The engine died."))
        elif what in ("attach", "switch"):
            self.models.append(Model())
            served.entry.attach(self.models[-1])
        await turns(12)
        self.check(before)

    def check(self, inflight_before: int) -> None:
        gate = self.served.gate
        limits = gate.limits
        if limits.max_inflight is not None and gate.inflight > inflight_before:
            alone = sum(model.running for model in self.models) == 1
            assert gate.inflight <= limits.max_inflight or alone
        if limits.paused or limits.draining:
            assert gate.inflight <= inflight_before
        assert gate.held <= limits.hold_queue and (not limits.draining or not gate.held)
        assert gate.held == sum(not c.is_done for c in self.clients) - sum(model.running for model in self.models)

    async def end(self) -> None:
        """Everything is let in, and every answer comes to its end."""
        self.served.gate.apply(Limits())
        if self.served.entry._app is None:
            self.served.entry.attach(self.models[-1])
        await turns()
        assert self.served.gate.held == 0
        for model in self.models:
            model.finish_all()
        await turns()
        tasks = [client.task for client in self.clients if client.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=5)
        assert all(task.done() for task in tasks)
        assert not self.strange
        counts = self.served.gate.counts()
        assert (counts.inflight, self.served.gate._line.held_bytes.used, self.served.gate._line._wake) == (0, 0, None)
        answered = [client for client in self.clients if client.sent]
        ok = sum(client.status == 200 for client in answered)
        assert counts.refused_total == len(answered) - ok
        assert counts.admitted_total >= ok
        assert counts.admitted_total + counts.refused_total + counts.gone_total == len(self.clients)
        assert asyncio.all_tasks() == {asyncio.current_task()}


@settings(max_examples=150, deadline=None)
@given(STEPS)
def test_the_cap_holds_and_nobody_is_lost_whatever_happens(steps: list[tuple[str, Any]]) -> None:
    async def run() -> None:
        story = Story()
        for what, how in steps:
            await story.step(what, how)
        await story.end()

    asyncio.run(run())
