"""A page on which a value is changed: step it or type it, agree to it, see what became of it.

What is the same on every such page: the cursor, the entry, the one call and its outcome, which outlives the page. How
its desk changes is in `console.change_desk` and in the page's own desk.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any, ClassVar, Generic, TypeVar

from textual.widgets import Input

from console import change_desk
from console import format as fmt
from console.change_desk import Desk, Pending
from console.tui.app import OUTCOME_S
from console.tui.screens.entry import EntryPage
from engine_host.protocol.methods import Applied

D = TypeVar("D", bound=Desk[Any])
A = TypeVar("A", bound=Applied)


class ChangePage(EntryPage, Generic[D, A]):
    NOUN: ClassVar[str]
    """What is changed, before an outcome that is told on another page."""

    def __init__(self, desk: D) -> None:
        super().__init__()
        self.desk: D = desk

    def rows(self) -> Mapping[str, object]:
        """What the cursor goes through, by name."""
        raise NotImplementedError

    def shown_name(self, name: str) -> str:
        """A row's, as the page writes it."""
        raise NotImplementedError

    def typing_hint(self, name: str) -> str:
        """What can be typed as this row's value; empty: nothing can."""
        raise NotImplementedError

    def typed(self, text: str) -> D:
        """The desk after this was typed."""
        raise NotImplementedError

    def change_words(self, pending: Pending[Any]) -> str:
        """The change in a few words."""
        raise NotImplementedError

    async def ask(self, pending: Pending[Any], key: str) -> A | str:
        """Ask the host for it, once, with this idempotency key: its answer, or in words what became of it."""
        raise NotImplementedError

    def made(self, answer: A, said: str) -> D:
        """The desk after an answer; `said`: its words."""
        raise NotImplementedError

    # Making a change

    def action_move(self, steps: int) -> None:
        self.put(change_desk.moved(self.desk, self.rows(), steps))

    def action_lasting(self) -> None:
        self.put(change_desk.lasting_next(self.desk))

    def action_drop(self) -> None:
        self.put(change_desk.dropped(self.desk))

    # Typing a value

    def action_type_value(self) -> None:
        name = change_desk.at_cursor(self.desk, self.rows())
        if name is not None and (hint := self.typing_hint(name)):
            self.open_entry(f"{self.shown_name(name)} ({hint}; esc drops it):", "")
            self.put(change_desk.typing(self.desk, True))

    def action_stop_typing(self) -> None:
        self.close_entry()
        self.put(change_desk.typing(self.desk, False))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        desk = self.typed(event.value)
        if desk.typing_fault:
            name = change_desk.at_cursor(desk, self.rows()) or ""
            self.say_at_entry(f"{self.shown_name(name)} ▲ {desk.typing_fault}:")
        else:
            self.close_entry()
        self.put(desk)

    # The call

    def action_send(self) -> None:
        pending = self.desk.pending
        assert pending is not None
        self.put(change_desk.sending(self.desk))
        # Owned by the app: its outcome outlives this page.
        self.console.run_worker(self._send(pending), name=self.NOUN, exit_on_error=False)

    async def _send(self, pending: Pending[Any]) -> None:
        answer = await self.ask(pending, uuid.uuid4().hex)
        if isinstance(answer, str):
            told, self.desk = answer, change_desk.refused(self.desk, answer)
        else:
            said = fmt.clean(answer.text)
            told, self.desk = f"{self.NOUN}: {said or self.change_words(pending)}", self.made(answer, said)
        self.console.draw()
        if not self.is_current:
            self.console.notice(told, OUTCOME_S)

    def put(self, desk: D) -> None:
        """On the screen, at once."""
        self.desk = desk
        self.console.draw()
