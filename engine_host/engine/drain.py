"""One drain, for a stop or a restart: no new requests, and a deadline for those in flight."""

from __future__ import annotations

import asyncio
import time

from engine_host.engine.commands import Command, Commands
from engine_host.engine.host_state import EventSink
from engine_host.engine.port import Engine
from engine_host.gateway.entry import Entry
from engine_host.gateway.unavailable import Unavailable
from engine_host.protocol.events import Severity
from engine_host.protocol.snapshot import State

_POLL_S = 0.2
"""How soon force, the engine's death and the deadline are seen."""


class Drain:
    """`force` ends it early."""

    def __init__(
        self,
        command: Command,
        entry: Entry,
        commands: Commands,
        force: asyncio.Event,
        on_event: EventSink,
        start_s: float,
    ) -> None:
        """`start_s`: what the start takes that follows on a restart's drain."""
        self._command = command
        self._entry = entry
        self._commands = commands
        self._force = force
        self._on_event = on_event
        self._start_s = start_s
        self._deadline = time.monotonic() + command.drain_timeout_s

    @property
    def plan(self) -> str:
        """What it sets out to do."""
        inflight = self._entry.inflight
        waiting = f"{_requests(inflight)} in flight, {self._command.drain_timeout_s:.0f} s at most"
        return f"draining for a {self._command.kind}: {waiting if inflight else 'none in flight'}"

    @property
    def phase(self) -> str:
        """What it waits for now."""
        left_s = max(0.0, self._deadline - time.monotonic())
        return f"draining: {_requests(self._entry.inflight)} left, {left_s:.0f} s at most"

    async def run(self, engine: Engine) -> Command:
        """Refuse new requests, and wait for those in flight until the deadline, force, or the engine's death.

        Returns the command to carry out: a stop that arrives meanwhile supersedes a restart, and the nearer deadline
        counts, so that nothing asked for earlier can hold up a stop.
        """
        self._entry.refuse(self._refusal(self._deadline))
        idle = asyncio.create_task(self._entry.wait_idle())
        while not (idle.done() or self._force.is_set() or engine.is_dead):
            left_s = self._deadline - time.monotonic()
            if left_s <= 0:
                break
            if other := await self._commands.within(min(left_s, _POLL_S), idle):
                self._command = self._whichever(self._command, other)
                self._entry.refuse(self._refusal(self._deadline))
        idle.cancel()
        if left_over := self._entry.inflight:
            text = f"{_requests(left_over)} ended early: {self._cause()}"
            self._on_event("drain.cut_short", text, severity=Severity.WARNING, who=self._command.who)
        self._entry.detach(self._refusal(time.monotonic()))
        return self._command

    def _refusal(self, drained_at: float) -> Unavailable:
        """What clients are told: when a restart's engine serves again, or that of a stop when the host has gone."""
        now = time.monotonic()
        back_in_s = max(0.0, drained_at - now) + (self._start_s if self._command.kind == "restart" else 0.0)
        text = f"The server drains for a {self._command.kind}; try another one."
        return Unavailable(State.DRAINING, text, back_in_s, began=now)

    def _whichever(self, command: Command, other: Command) -> Command:
        """`other` arrived while `command` drains; returns which of them to carry out."""
        if other.kind != "stop":
            other.refuse(f"the host already drains for a {command.kind}", "Follow it with `vllm-console watch`.")
            return command
        self._deadline = min(self._deadline, time.monotonic() + other.drain_timeout_s)
        if command.kind == "stop":
            command.also.append(other)
            return command
        command.refuse(f"{other.who} stops the host", "Start it again with `engine-host serve PROFILE`.")
        self._on_event("drain.superseded", "the host will stop instead of restarting the engine", who=other.who)
        return other

    def _cause(self) -> str:
        if self._force.is_set():
            return "forced"
        return "the drain time is over" if time.monotonic() >= self._deadline else "the engine died"


def _requests(count: int) -> str:
    return f"{count} request" if count == 1 else f"{count} requests"
