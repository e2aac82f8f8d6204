"""The pages by name. All but the first are imported when they are first asked for: the overview must come up at once,
and most sessions never see the others."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from textual.screen import Screen

from console.tui.screens.overview import OverviewScreen


def _later(module: str, name: str) -> Callable[[], Screen[None]]:
    def page() -> Screen[None]:
        made = getattr(import_module(f"console.tui.screens.{module}"), name)()
        assert isinstance(made, Screen)
        return made

    return page


PAGES: dict[str, str | Callable[[], Screen[Any]]] = {
    "overview": OverviewScreen,
    "kv": _later("kv", "KvScreen"),
    "queue": _later("queue", "QueueScreen"),
    "speculation": _later("speculation", "SpeculationScreen"),
    "dials": _later("dials", "DialsScreen"),
    "profiles": _later("profiles", "ProfilesScreen"),
    "throttle": _later("throttle", "ThrottleScreen"),
    "events": _later("events", "EventsScreen"),
}
"""As the action table names them: `screen('kv')`."""
