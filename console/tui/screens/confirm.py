"""Asks before a dangerous action: the consequence with live numbers, the focus on Cancel.

What cannot be undone wants the host's name typed, so that a habit of pressing enter stops no host. Nobody can agree to
what does not fit on the screen: on a terminal too small for all of it there is only the way back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical
from textual.screen import ModalScreen
from textual.widget import Widget
from textual.widgets import Button, Input, Static

from console.model import Link, State
from console.tui.keys import Action, bindings
from console.tui.offers import legend, refusal

UNREADABLE = "▲ Too small to show what it would do; 80x24 shows it. esc goes back."


@dataclass(frozen=True, slots=True)
class Question:
    action: Action
    """What is asked about: while it is refused, nobody can agree to it."""
    asked: str
    """"restart engine on gpu-7": what would be done."""
    consequence: Callable[[State], str]
    """Asked again while somebody thinks, so that the numbers stay live."""
    go: str
    """What the button that does it says."""
    keep: str = "Cancel"
    wanted_name: str = ""
    """To be typed first; empty: nothing."""


class ConfirmScreen(ModalScreen[bool]):
    """Dismissed with True only when the operator agreed."""

    PLACES: ClassVar[tuple[str, ...]] = ("confirm",)
    """As the action table names what can be done here."""
    BINDINGS: ClassVar[list[BindingType]] = bindings("confirm")
    # Not declared as class variables: the base class declares them otherwise.
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (66, "-wide")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS = [(0, "-low"), (24, "-high")]  # noqa: RUF012

    def __init__(self, question: Question, state: State) -> None:
        super().__init__()
        self._question = question
        self._state = state
        self._said = ""

    def compose(self) -> ComposeResult:
        question = self._question
        self._said = self._consequence()
        yield Static(UNREADABLE, id="unreadable", markup=False)
        with Vertical(id="dialog"):
            yield Static(f"▲ {question.asked}?", id="question", markup=False)
            yield Static(self._said, id="consequence", markup=False)
            yield from self.fields()
            with Horizontal(id="buttons"):
                yield Button(question.keep, id="cancel")
                yield Button(question.go, id="go")
            yield Static(legend(self.PLACES), id="legend", markup=False)

    def fields(self) -> ComposeResult:
        """What has to be filled in."""
        if self._question.wanted_name:
            yield Static(f"Type {self._question.wanted_name} to go on:", markup=False)
            yield Input(id="name", select_on_focus=False)

    def on_mount(self) -> None:
        for field in self.query(Input):
            field.cursor_blink = False
        self.query_one("#cancel", Button).focus()
        self.check()

    def on_resize(self) -> None:
        self.set_class(False, "-unreadable")
        self.call_after_refresh(self.check)

    def follow(self, state: State) -> None:
        """Keep the numbers live while somebody thinks."""
        self._state = state
        self.say()

    def say(self) -> None:
        said = self._consequence()
        if said != self._said:
            self._said = said
            self.query_one("#consequence", Static).update(said)
            self.call_after_refresh(self.check)
        self.check()

    def check(self) -> None:
        """Offer to go on only while it can be agreed to: readable, filled in, and not refused by now."""
        self.set_class(not self._is_readable(), "-unreadable")
        go = self.query_one("#go", Button)
        go.disabled = not self.can_go()
        if go.disabled and go.has_focus:
            self.query_one("#cancel", Button).focus()

    def can_go(self) -> bool:
        names = [field.value.strip() for field in self.query("#name").results(Input)]
        is_named = all(name == self._question.wanted_name for name in names)
        return is_named and not self.has_class("-unreadable") and refusal(self._question.action, self._state) is None

    def _consequence(self) -> str:
        if self._state.link is not Link.UP:
            return "Not now: there is no connection to the host."
        return self._question.consequence(self._state)

    def _is_readable(self) -> bool:
        """Everything in the dialog is on the screen; once hidden, only a resize can tell."""
        if self.has_class("-unreadable"):
            return False
        dialog = self.query_one("#dialog", Vertical)
        room = self.region
        shown: list[Widget] = [dialog, *dialog.query("Static, Input, Button").results(Widget)]
        return all(room.contains_region(widget.region) for widget in shown) and dialog.max_scroll_y == 0

    def on_input_changed(self) -> None:
        self.check()

    def on_input_submitted(self) -> None:
        """Enter in a field agrees to nothing: it moves on to the button."""
        go = self.query_one("#go", Button)
        (self.query_one("#cancel", Button) if go.disabled else go).focus()

    def on_button_pressed(self, event: Button.Pressed) -> None:
        if event.button.id in {"cancel", "go"}:
            self.dismiss(event.button.id == "go")
