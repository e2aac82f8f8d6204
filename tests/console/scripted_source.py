"""A source for the app that says what a test tells it, by a clock that stands still."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from console.connect import Target
from console.model import Connected, EventArrived, HistoryArrived, Message, SnapshotArrived
from console.tui.app import ConsoleApp
from engine_host.protocol.errors import OperatorError
from engine_host.protocol.methods import METHODS, Applied, Risk, Role
from engine_host.protocol.snapshot import Snapshot, State
from engine_host.protocol.switching import SwitchStatus
from tests.console import sample, sample_live, sample_switch, sample_throttle

R = TypeVar("R")

NOW = 100.0
"""What the standing clock shows."""


class ScriptedSource:
    def __init__(self, messages: list[Message]) -> None:
        self.messages = messages
        self.post: Callable[[Message], None] = lambda message: None
        self.acted: list[tuple[str, Any]] = []
        self.answer: Applied | OperatorError = Applied(state=State.SERVING, state_version=8, took_s=2.0, text="done")
        """To every changing call that `answers` does not name."""
        self.answers: dict[str, Any] = {
            "profiles.list": sample_switch.profiles(),
            "profiles.diff": sample_switch.diff(),
            "switch.forecast": sample_switch.forecast(),
            "switch.status": SwitchStatus(),
            "requests.list": lambda params: sample_live.requests(),
            "kv.map": lambda params: sample_live.kv_map(params.cells),
            "throttle.get": sample_throttle.sheet(),
        }
        """A function is called with the parameters, an `asyncio.Future` is awaited, an `OperatorError` is raised."""
        self.read: list[tuple[str, Any]] = []

    async def run(self) -> None:
        for message in self.messages:
            self.post(message)
        await asyncio.Event().wait()

    async def call(self, method: str, type_: type[R], params: Any, deadline_s: float) -> R:
        assert isinstance(params, METHODS[method].params)  # a host refuses any other
        (self.read if METHODS[method].risk is Risk.READ else self.acted).append((method, params))
        answer = self.answers.get(method, self.answer)
        if callable(answer):
            answer = answer(params)
        if isinstance(answer, asyncio.Future):
            answer = await answer
        if isinstance(answer, OperatorError):
            raise answer
        assert isinstance(answer, type_)
        return answer


def attached(snapshot: Snapshot, role: Role = Role.ADMIN, *more: Message) -> list[Message]:
    """What a console hears when it attaches, and then `more`."""
    return [
        Connected(sample.hello(role), NOW - 1),
        HistoryArrived(sample.history()),
        *(EventArrived(e) for e in sample.events()),
        SnapshotArrived(snapshot, NOW - 0.5),
        *more,
    ]


class ScriptedApp(ConsoleApp):
    """The real app over a scripted source; both clocks stand still unless a test moves `now`."""

    CSS_PATH = "../../console/tui/theme.tcss"

    def __init__(self, messages: list[Message]) -> None:
        self.script = ScriptedSource(messages)
        self.now = NOW

        def source(target: Target, post: Callable[[Message], None]) -> ScriptedSource:
            self.script.post = post
            return self.script

        super().__init__(
            Target(Path("/run/vllm-console/host.sock")),
            source,
            clock=lambda: self.now,
            wall=lambda: sample.AT + self.now - NOW + 0.5,
        )


def app(snapshot: Snapshot, role: Role = Role.ADMIN, *more: Message) -> ScriptedApp:
    return ScriptedApp(attached(snapshot, role, *more))
