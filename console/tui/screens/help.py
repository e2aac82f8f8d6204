"""Help: the action table, and what the words on the overview mean."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen

from console.lines import BLANK, Line, Tone, fit, line
from console.model import State
from console.tui.keys import help_lines
from console.tui.widgets.board import Board
from console.words import ROLES

_WORDS: tuple[tuple[str, str], ...] = (
    ("KV cache", "memory for the tokens of requests; full: some are preempted"),
    ("held", "waits at the gate, before vLLM; waiting: in vLLM's own queue"),
    ("preempted", "put back into the queue, because the KV cache was full"),
    ("acceptance", "share of the guessed (draft) tokens that the model kept"),
    ("mean length", "tokens one step yields, the model's own included"),
    ("position", "of the drafts that got this far, the share kept here"),
    ("p95", "95 of 100 were faster; (1 min): the window it is measured over"),
    ("–", "unknown, never 0;  dim values, ? after the state: old"),
)


def help_page(screen: str, state: State, width: int, height: int) -> list[Line]:
    """Pure: the page as it fits."""
    role = ROLES[state.hello.role] if state.hello is not None else "not connected"
    rows = [
        line((" Keys", Tone.LABEL), (f"   your role: {role}", Tone.FAINT)),
        *help_lines(screen, state),
        BLANK,
        line((" Words", Tone.LABEL)),
        *(line((f"  {word:>11}  ", Tone.STRONG), meaning) for word, meaning in _WORDS),
    ]
    return [fit(row, width) for row in [*rows, *[BLANK] * height][:height]]


class HelpScreen(ModalScreen[None]):
    """Covers the whole screen; any of its keys leaves it."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,question_mark,enter", "dismiss", "back")]

    def __init__(self, screen: str, state: State) -> None:
        super().__init__()
        self._page, self._state = screen, state

    def compose(self) -> ComposeResult:
        yield Board(id="help")

    def on_resize(self) -> None:
        width, height = self.size
        self.query_one(Board).show(help_page(self._page, self._state, width, height))
