"""Help: the action table, and what the words on the page mean."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen

from console import format as fmt
from console.frame import sized
from console.glossary import words
from console.lines import BLANK, Line, Tone, line
from console.model import State
from console.tui.keys import FAR, PAGE
from console.tui.offers import help_lines
from console.tui.widgets.board import Board
from console.words import ROLES


def help_rows(screen: str, state: State) -> list[Line]:
    """Pure: the whole page, as long as it is."""
    role = ROLES[state.hello.role] if state.hello is not None else "not connected"
    return [
        line((" Keys", Tone.LABEL), (f"   your role: {role}", Tone.FAINT)),
        *help_lines(screen, state),
        BLANK,
        line((" Words", Tone.LABEL)),
        *(line((f"  {word:>14}  ", Tone.STRONG), meaning) for word, meaning in words(screen.split(".")[0])),
    ]


def help_page(screen: str, state: State, width: int, height: int, top: int = 0) -> list[Line]:
    """As much of it as fits, from row `top` on; the last row says when there is more."""
    rows = help_rows(screen, state)
    shown = rows[top : top + height]
    if top + height < len(rows) and shown:
        shown[-1] = line((f"  ↓ {fmt.many(len(rows) - top - height + 1, 'more row')}", Tone.NOTICE))
    return sized(shown, width, height)


class HelpScreen(ModalScreen[None]):
    """Covers the whole screen; longer than the terminal, it scrolls."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,question_mark,enter", "dismiss", "back"),
        Binding("down,j", "move(1)"),
        Binding("up,k", "move(-1)"),
        Binding("pagedown,space", f"move({PAGE})"),
        Binding("pageup", f"move(-{PAGE})"),
        Binding("end,G", f"move({FAR})"),
        Binding("home,g", f"move(-{FAR})"),
    ]

    def __init__(self, screen: str, state: State) -> None:
        super().__init__()
        self._page, self._state = screen, state
        self._top = 0

    def compose(self) -> ComposeResult:
        yield Board(id="help")

    def on_resize(self) -> None:
        self.action_move(0)

    def action_move(self, steps: int) -> None:
        width, height = self.size
        longest = max(0, len(help_rows(self._page, self._state)) - height)
        self._top = min(longest, max(0, self._top + steps))
        self.query_one(Board).show(help_page(self._page, self._state, width, height, self._top))
