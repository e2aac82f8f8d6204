"""Asks before a dangerous action: the consequence with live numbers, the focus on Cancel.

What cannot be undone wants the host's name typed, so that a habit of pressing enter stops no host.
"""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.screen import ModalScreen
from textual.widgets import Button, Input, Static

from console import format as fmt
from console.consequence import consequence
from console.model import State
from console.tui.keys import Action


class ConfirmScreen(ModalScreen[bool]):
    """Dismissed with True only when the operator agreed."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(False)", "cancel"),
        Binding("left,up", "app.focus_previous", show=False),
        Binding("right,down", "app.focus_next", show=False),
    ]

    def __init__(self, action: Action, state: State, *, wants_name: bool) -> None:
        super().__init__()
        self._action = action
        self._host = fmt.clean(state.snapshot.host.name) if state.snapshot is not None else ""
        self._wants_name = wants_name
        self._said = self._consequence(state)

    def compose(self) -> ComposeResult:
        with Vertical(id="dialog"):
            yield Static(f"▲ {self._action.label} on {self._host}?", id="question", markup=False)
            yield Static(self._said, id="consequence", markup=False)
            if self._wants_name:
                yield Static(f"Type {self._host} to go on:", markup=False)
                yield Input(id="name", select_on_focus=False)
            with Horizontal(id="buttons"):
                yield Button("Cancel", id="cancel")
                yield Button(self._action.label.capitalize(), id="go", disabled=self._wants_name)

    def on_mount(self) -> None:
        for field in self.query(Input):
            field.cursor_blink = False
        self.query_one("#cancel", Button).focus()

    def follow(self, state: State) -> None:
        """Keep the numbers live while somebody thinks."""
        said = self._consequence(state)
        if said != self._said:
            self._said = said
            self.query_one("#consequence", Static).update(said)

    def _consequence(self, state: State) -> str:
        method = self._action.method
        assert method is not None
        return consequence(method, state.snapshot)

    def on_input_changed(self, event: Input.Changed) -> None:
        self.query_one("#go", Button).disabled = event.value.strip() != self._host

    def on_input_submitted(self) -> None:
        """Enter in the name field agrees to nothing: it moves on to the button."""
        go = self.query_one("#go", Button)
        (self.query_one("#cancel", Button) if go.disabled else go).focus()

    def on_button_pressed(self, event: Button.Pressed) -> None:
        self.dismiss(event.button.id == "go")
