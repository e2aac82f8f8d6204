"""Recorded screens: every state of the console at the sizes people have.

`pytest tests/console/test_screens.py --snapshot-update` records them anew; look at each before committing it.
"""

from __future__ import annotations

import pytest

from console.model import Connecting, Disconnected
from engine_host.protocol.methods import Role
from tests.console import sample
from tests.console.scripted_source import NOW, ScriptedApp, app

SIZES = [(80, 24), (120, 40)]

SCENES = {
    "live": lambda: app(sample.serving()),
    "starting": lambda: app(sample.starting()),
    "stale": lambda: app(sample.serving(age_s=42.0)),
    "disconnected": lambda: app(sample.serving(), Role.ADMIN, Disconnected("the host closed it", NOW - 7, NOW + 3)),
    "dead": lambda: app(sample.dead()),
    "recovering": lambda: app(sample.recovering()),
    "draining": lambda: app(sample.draining()),
    "hung": lambda: app(sample.hung()),
    "speculation_off": lambda: app(sample.idle_cpu()),
    "viewer": lambda: app(sample.serving(), Role.VIEWER),
    "connecting": lambda: ScriptedApp([Connecting(NOW)]),
}


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch):
    """What a developer's shell says about colours must not reach a recording."""
    for name in ("NO_COLOR", "COLORTERM", "TEXTUAL_ANIMATIONS", "TEXTUAL_COLOR_SYSTEM"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("scene", SCENES)
def test_overview(snap_compare, scene, size):
    assert snap_compare(SCENES[scene](), terminal_size=size)


def test_overview_with_room(snap_compare):
    assert snap_compare(app(sample.serving()), terminal_size=(160, 50))


@pytest.mark.parametrize("size", [(60, 12), (79, 24)], ids=lambda size: f"{size[0]}x{size[1]}")
def test_too_small(snap_compare, size):
    assert snap_compare(app(sample.serving()), terminal_size=size)


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize(
    ("name", "keys"),
    [("help", ["question_mark"]), ("events", ["7"]), ("frozen", ["p"]), ("stop", ["S"]), ("restart", ["R"])],
)
def test_page(snap_compare, name, keys, size):
    assert snap_compare(app(sample.serving()), terminal_size=size, press=keys)


def test_help_of_a_viewer(snap_compare):
    assert snap_compare(app(sample.serving(), Role.VIEWER), terminal_size=(80, 24), press=["question_mark"])
