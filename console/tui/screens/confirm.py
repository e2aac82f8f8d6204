"""Asks before a dangerous action: the consequence with live numbers, the focus on Cancel.

What cannot be undone wants the host's name typed, so that a habit of pressing enter stops no host.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.screen import ModalScreen
from textual.widgets import Button, Input, Static

from console.model import State


@dataclass(frozen=True, slots=True)
class Question:
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

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(False)", "cancel"),
        Binding("left,up", "app.focus_previous", show=False),
        Binding("right,down", "app.focus_next", show=False),
    ]

    def __init__(self, question: Question, state: State) -> None:
        super().__init__()
        self._question = question
        self._said = question.consequence(state)

    def compose(self) -> ComposeResult:
        question = self._question
        with Vertical(id="dialog"):
            yield Static(f"▲ {question.asked}?", id="question", markup=False)
            yield Static(self._said, id="consequence", markup=False)
            if question.wanted_name:
                yield Static(f"Type {question.wanted_name} to go on:", markup=False)
                yield Input(id="name", select_on_focus=False)
            with Horizontal(id="buttons"):
                yield Button(question.keep, id="cancel")
                yield Button(question.go, id="go", disabled=bool(question.wanted_name))

    def on_mount(self) -> None:
        for field in self.query(Input):
            field.cursor_blink = False
        self.query_one("#cancel", Button).focus()

    def follow(self, state: State) -> None:
        """Keep the numbers live while somebody thinks."""
        said = self._question.consequence(state)
        if said != self._said:
            self._said = said
            self.query_one("#consequence", Static).update(said)

    def on_input_changed(self, event: Input.Changed) -> None:
        self.query_one("#go", Button).disabled = event.value.strip() != self._question.wanted_name

    def on_input_submitted(self) -> None:
        """Enter in the name field agrees to nothing: it moves on to the button."""
        go = self.query_one("#go", Button)
        (self.query_one("#cancel", Button) if go.disabled else go).focus()

    def on_button_pressed(self, event: Button.Pressed) -> None:
        self.dismiss(event.button.id == "go")
