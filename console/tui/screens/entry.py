"""A page on which something can be typed: while it is, an entry takes the footer's place."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.widgets import Input, Static

from console.tui.screens.page import Page
from console.tui.widgets.board import Board


class EntryPage(Page):
    def compose(self) -> ComposeResult:
        yield Board(id="board")
        with Horizontal(id="entry"):
            yield Static(id="entry_label", markup=False)
            yield Input(id="entry_text", compact=True, select_on_focus=False)
        yield Board(id="footer")

    def on_mount(self) -> None:
        self.query_one("#entry_text", Input).cursor_blink = False
        self.close_entry()

    def open_entry(self, label: str, text: str) -> None:
        entry = self.query_one("#entry_text", Input)
        self.say_at_entry(label)
        entry.value = text
        entry.cursor_position = len(text)
        self._show_entry(True)
        entry.focus()

    def say_at_entry(self, label: str) -> None:
        self.query_one("#entry_label", Static).update(f"{label} ")

    def close_entry(self) -> None:
        self._show_entry(False)
        self.set_focus(None)

    def _show_entry(self, is_open: bool) -> None:
        entry = self.query_one("#entry", Horizontal)
        entry.display = is_open
        # Not only hidden: an input that is on the screen takes the focus when the screen comes back.
        self.query_one("#entry_text", Input).disabled = not is_open
        self.query_one("#footer", Board).display = not is_open
