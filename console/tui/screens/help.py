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

_PROFILE_WORDS: tuple[tuple[str, str], ...] = (
    ("tier", "how a change reaches the engine; the gentlest is taken"),
    ("carried", "goes on in the new engine where it was; its stream only pauses"),
    ("drained", "cannot be carried: gets some time to finish in the old engine"),
    ("begun again", "had sent nothing yet: the new engine takes it from the start"),
    ("gate", "where requests wait that come during the switch"),
    ("digest", "of the effective values: the same digest is the same profile"),
)

_WORDS: tuple[tuple[str, str], ...] = (
    ("KV cache", "holds the tokens of requests; full: some are put back to wait"),
    ("tokens fit", "as vLLM counts: with the one block that it keeps for itself"),
    ("held", "waits at the gate, before vLLM; waiting: in vLLM's own queue"),
    ("acceptance", "share of the guessed (draft) tokens that the model kept"),
    ("mean length", "tokens one step yields, the model's own included"),
    ("position", "kept there, of all drafts that long (not of those kept so far)"),
    ("between tokens", "of a stream, per engine step: several tokens with drafts (ITL)"),
    ("p95", "95 of 100 were faster; (1 min): the window it is measured over"),
    ("–", "unknown, never 0;  dim values, ? after the state: old"),
)
"""A figure that has a look-alike says which one it is."""


def help_page(screen: str, state: State, width: int, height: int) -> list[Line]:
    """Pure: the page as it fits."""
    role = ROLES[state.hello.role] if state.hello is not None else "not connected"
    words = _PROFILE_WORDS if screen.startswith("profiles") else _WORDS
    rows = [
        line((" Keys", Tone.LABEL), (f"   your role: {role}", Tone.FAINT)),
        *help_lines(screen, state),
        BLANK,
        line((" Words", Tone.LABEL)),
        *(line((f"  {word:>14}  ", Tone.STRONG), meaning) for word, meaning in words),
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
