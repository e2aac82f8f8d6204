"""The queue screen: asks for the list, moves about in it, and ends one request when told to.

What it shows and how it changes is in `console.queue_*`.
"""

from __future__ import annotations

import uuid
from typing import ClassVar

from textual.binding import BindingType
from textual.widgets import Input

from console import format as fmt
from console import queue_desk
from console.consequence import ABORT_DEADLINE_S, METHOD_ABORT, abort_consequence, name
from console.frame import Moment
from console.lines import Line
from console.model import State
from console.queue_desk import Desk
from console.queue_page import queue_page
from console.tui.app import OUTCOME_S, REASON
from console.tui.keys import action_for, bindings
from console.tui.poll import Poll
from console.tui.screens.confirm import ConfirmScreen, Question
from console.tui.screens.entry import EntryPage
from engine_host.protocol.methods import Applied, RequestAbort, RequestList, RequestRow


class QueueScreen(EntryPage):
    NAME = "queue"
    BINDINGS: ClassVar[list[BindingType]] = bindings("queue")

    def __init__(self) -> None:
        super().__init__()
        self.desk = Desk()
        self.list = Poll(self, "requests", "requests.list", RequestList, self._listed, self._forgot)

    @property
    def place(self) -> str:
        return queue_desk.place(self.desk)

    def lines(self, state: State, moment: Moment, width: int, height: int) -> list[Line]:
        return queue_page(state, self.desk, self.list.polled, moment, width, height)

    def show(self, state: State, moment: Moment, notice: str) -> None:
        self.ask_for_list()
        super().show(state, moment, notice)

    def ask_for_list(self) -> None:
        self.list.look(queue_desk.question(self.desk))

    def _listed(self, found: RequestList) -> None:
        self.desk = queue_desk.listed(self.desk, found)

    def _forgot(self) -> None:
        self.desk = queue_desk.forgotten(self.desk)

    # Moving about

    def action_move(self, steps: int) -> None:
        self._now(queue_desk.moved(self.desk, steps))

    def action_sort(self) -> None:
        self._now(queue_desk.sorted_by_next(self.desk))

    def action_next_state(self) -> None:
        self._now(queue_desk.filtered_by_next_state(self.desk))

    def action_look_into(self) -> None:
        self._now(queue_desk.looking_into(self.desk))

    def action_back(self) -> None:
        self._now(queue_desk.back(self.desk))

    # Typing what to match

    def action_type_filter(self) -> None:
        self.open_entry("find (enter keeps it, esc drops it) /", self.desk.match)
        self._now(queue_desk.typing(self.desk, True))

    def action_drop_filter(self) -> None:
        self.close_entry()
        self._now(queue_desk.matching(queue_desk.typing(self.desk, False), ""))

    def on_input_changed(self, event: Input.Changed) -> None:
        if self.desk.is_typing:
            self._now(queue_desk.matching(self.desk, event.value))

    def on_input_submitted(self) -> None:
        self.close_entry()
        self._now(queue_desk.typing(self.desk, False))

    # Ending one

    def action_ask_abort(self) -> None:
        row = queue_desk.abortable(self.desk)
        assert row is not None
        self.console.ask(AskAbort(self, row, self.console.state), lambda: self._abort(row.id), name=METHOD_ABORT)

    def standing_of(self, request_id: str) -> RequestRow | None:
        """As the newest list has it; None once it is not in it."""
        listed = self.desk.listed.requests if self.desk.listed is not None else []
        return next((row for row in listed if row.id == request_id), None)

    async def _abort(self, request_id: str) -> None:
        params = RequestAbort(id=request_id, reason=REASON, idempotency_key=uuid.uuid4().hex)
        outcome = await self.console.attempt("abort", METHOD_ABORT, Applied, params, ABORT_DEADLINE_S)
        said = outcome if isinstance(outcome, str) else f"abort: {outcome.text}"
        self.console.notice(fmt.clean(said), OUTCOME_S)

    def _now(self, desk: Desk) -> None:
        self.desk = desk
        self.console.draw()


class AskAbort(ConfirmScreen):
    """Asks before a request is ended; one that ends by itself meanwhile cannot be ended any more."""

    def __init__(self, page: QueueScreen, row: RequestRow, state: State) -> None:
        self._queue, self._request_id = page, row.id
        question = Question(
            action_for(METHOD_ABORT),
            f"abort {name(row.id)}",
            lambda _: abort_consequence(page.standing_of(row.id)),
            go="Abort",
            keep="Let it go on",
        )
        super().__init__(question, state)

    def follow(self, state: State) -> None:
        self._queue.ask_for_list()
        super().follow(state)

    def can_go(self) -> bool:
        return self._queue.standing_of(self._request_id) is not None and super().can_go()
