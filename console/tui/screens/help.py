"""Help: the action table, and what the words on the overview mean."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.screen import ModalScreen

from console.lines import BLANK, Line, Tone, fit, line
from console.model import State
from console.tui.keys import help_lines
from console.tui.widgets.board import Board
from console.words import ROLES

_WORDS: tuple[tuple[str, str], ...] = (
    ("waiting", "in vLLM's queue; held: at the gate in front of it; preempted: put back, KV was full"),
    ("acceptance", "draft tokens the model kept; length: tokens a step yields, its own included"),
    ("position", "of the drafts that reached this place, how many were kept there"),
    ("first token", "TTFT; between tokens: ITL; p95: 95 of 100 were faster"),
    ("–", "not known (never 0)      ? after the state, dim values: stale"),
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

    def __init__(self, screen: str, state: State) -> None:
        super().__init__()
        self._page, self._state = screen, state

    def compose(self) -> ComposeResult:
        yield Board(id="help")

    def on_resize(self) -> None:
        width, height = self.size
        self.query_one(Board).show(help_page(self._page, self._state, width, height))

    def key_escape(self) -> None:
        self.dismiss()

    key_q = key_question_mark = key_escape
