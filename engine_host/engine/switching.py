"""One switch at a time: who may begin one, who may cancel it, and what is told of its end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from engine_host.engine import last_words
from engine_host.engine.commands import Command, Commands, Interrupted
from engine_host.engine.deck import Deck
from engine_host.engine.host_state import EventSink, HostState
from engine_host.engine.recovery import Recovery
from engine_host.engine.switch import Switch, SwitchOrder
from engine_host.engine.switch_plan import Checked
from engine_host.engine.timeline import PhaseTimes
from engine_host.profiles import Profile
from engine_host.protocol.errors import EXIT_REFUSED, OperatorError
from engine_host.protocol.events import Severity
from engine_host.protocol.snapshot import State
from engine_host.protocol.switching import Outcome, SwitchResult


class Switching:
    """`ask` and `cancel` are for everybody, `carry_out` for the lifecycle."""

    def __init__(
        self, state: HostState, commands: Commands, deck: Deck, recovery: Recovery, on_event: EventSink
    ) -> None:
        self._state = state
        self._commands = commands
        self._deck = deck
        self._recovery = recovery
        self._on_event = on_event
        self.under_way: Switch | None = None
        self.last: SwitchResult | None = None

    @property
    def refusal(self) -> OperatorError | None:
        """Why no switch can begin now; None if one can."""
        if (other := self.under_way) is not None:
            since = time.strftime("%H:%M:%S", time.localtime(other.since))
            return OperatorError(
                f"{other.order.who} switches to {other.order.profile.name} since {since}",
                "Follow it with `vllm-console switch --status`, or cancel it with `vllm-console switch --cancel`.",
                exit_code=EXIT_REFUSED,
            )
        if self._state.now not in (State.SERVING, State.DEAD):
            return OperatorError(
                f"the host is {self._state.now}, and a profile is switched while it is serving or dead",
                "Follow it with `vllm-console watch` and try again.",
                exit_code=EXIT_REFUSED,
            )
        return None

    async def ask(
        self, order: SwitchOrder, preflight: Callable[[Profile], Coroutine[Any, Any, Checked]], times: PhaseTimes
    ) -> SwitchResult:
        """Returns when the switch is done, rolled back, refused or cancelled.

        Raises `OperatorError`: one is under way already, or the host is in no state for it.
        """
        if (refusal := self.refusal) is not None:
            raise refusal
        command = Command("switch", order.drain_timeout_s, order.who)
        self.under_way = Switch(self._deck, order, preflight, times, command.done)
        command.done.add_done_callback(self._is_over)
        result: SwitchResult = await self._commands.send(command)
        return result

    def _is_over(self, done: asyncio.Future[SwitchResult]) -> None:
        self.under_way = None

    def cancel(self, who: str) -> Awaitable[SwitchResult]:
        """How the switch ended, once it has. Raises `OperatorError` when there is none, or when it can only go forward
        or be rolled back."""
        under_way = self.under_way
        if under_way is None or not under_way.can_cancel:
            fact = "no switch is under way" if under_way is None else "the switch can no longer be cancelled"
            raise OperatorError(fact, "See `vllm-console switch --status`.", exit_code=EXIT_REFUSED)
        under_way.cancelled_by = who
        under_way.cancel.set()
        return asyncio.shield(under_way.done)

    async def carry_out(self, command: Command) -> Command | None:
        """Do what was asked for; returns a stop command that arrived meanwhile, which ended the switch."""
        under_way = self.under_way
        assert under_way is not None
        try:
            result = await under_way.run()
        except Interrupted as stop:
            command.refuse_stopping()
            return stop.command
        except OperatorError as error:
            command.done.set_exception(error)
            return None
        self.last = result
        self._tell(result)
        command.done.set_result(result)
        return None

    def _tell(self, result: SwitchResult) -> None:
        """What the state changes of a switch do not tell already."""
        if result.outcome is Outcome.FAILED:
            self._deck.entry.let_go()
            failure = last_words.failure(result.text, result.lines)
            self._recovery.crashed("switch.failed", "no engine after a switch", failure, had_served=False)
        else:
            good = result.outcome in (Outcome.SWITCHED, Outcome.UNCHANGED)
            severity = Severity.INFO if good else Severity.WARNING
            phases = {str(phase.name): round(phase.took_s or 0.0, 3) for phase in result.phases}
            data = {"tier": str(result.tier), "took_s": round(result.took_s, 3), "phases": phases}
            self._on_event(f"switch.{result.outcome}", result.text, severity=severity, who=result.who, data=data)
