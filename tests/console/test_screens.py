"""Recorded screens: every state of the console at the sizes people have.

`pytest tests/console/test_screens.py --snapshot-update` records them anew; look at each before committing it.
"""

from __future__ import annotations

import msgspec
import pytest

from console.model import Connecting, Disconnected, SnapshotArrived
from engine_host.protocol.methods import Role
from engine_host.protocol.profiles import ProfileList
from engine_host.protocol.switching import SwitchStatus
from engine_host.protocol.throttling import AutoState, GateCounts, Limit
from tests.console import sample, sample_live, sample_switch, sample_throttle
from tests.console.sample_throttle import NOW as NOW_THERE
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
    "paused": lambda: app(sample.paused()),
    "hung": lambda: app(sample.hung()),
    "speculation_off": lambda: app(sample.idle_cpu()),
    "viewer": lambda: app(sample.serving(), Role.VIEWER),
    "switching": lambda: app(sample_switch.switching()),
    "overlapping": lambda: app(sample_switch.overlapping()),
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


@pytest.mark.parametrize("size", [(60, 16), (40, 12), (30, 9)], ids=lambda size: f"{size[0]}x{size[1]}")
def test_small_dialog(snap_compare, size):
    assert snap_compare(app(sample.serving()), terminal_size=size, press=["S"])


def test_help_of_a_viewer(snap_compare):
    assert snap_compare(app(sample.serving(), Role.VIEWER), terminal_size=(80, 24), press=["question_mark"])


DRY_RUN = ["5", "end", "enter", "enter"]
"""From the overview to the forecast of the last profile of the sample."""

PROFILES = {
    "list": (lambda: told(), ["5"]),
    "many": (lambda: told(**{"profiles.list": sample_switch.many_profiles()}), ["5", "pagedown", "pagedown"]),
    "broken": (lambda: told(**{"profiles.list": sample_switch.broken_profiles()}), ["5", "pagedown", "down"]),
    "none": (lambda: told(**{"profiles.list": ProfileList(directory="/etc/vllm-console", profiles=[])}), ["5"]),
    "refused_file": (lambda: told(), ["5", "end", "up"]),
    "diff": (lambda: told(), ["5", "end", "enter"]),
    "forecast": (lambda: told(), DRY_RUN),
    "forecast_refused": (lambda: told(**{"switch.forecast": sample_switch.refused()}), DRY_RUN),
    "confirm": (lambda: told(), [*DRY_RUN, "enter"]),
    "progress": (lambda: told(sample_switch.switching()), ["5"]),
    "confirm_cancel": (lambda: told(sample_switch.switching()), ["5", "C"]),
    "switched": (lambda: told(**{"switch.status": SwitchStatus(last=sample_switch.result())}), ["5", "w"]),
    "rolled_back": (lambda: told(**{"switch.status": SwitchStatus(last=sample_switch.rolled_back())}), ["5", "w"]),
    "cancelled": (lambda: told(**{"switch.status": SwitchStatus(last=sample_switch.cancelled())}), ["5", "w"]),
    "viewer_list": (lambda: told(role=Role.VIEWER), ["5"]),
    "viewer_forecast": (lambda: told(role=Role.VIEWER), DRY_RUN),
    "disconnected": (lambda: app(sample.serving(), Role.ADMIN, Disconnected("gone", NOW - 7, NOW + 3)), ["5"]),
    "help": (lambda: told(), ["5", "question_mark"]),
}


def told(snapshot=None, role=Role.ADMIN, **answers):
    """The app over a host that gives these answers."""
    running = app(snapshot or sample.serving(), role)
    running.script.answers |= answers
    return running


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("scene", PROFILES)
def test_profiles(snap_compare, scene, size):
    make, keys = PROFILES[scene]
    assert snap_compare(make(), terminal_size=size, press=keys)


KV = {
    "busy": lambda: told(sample_live.live()),
    "filling": lambda: told(sample_live.filling()),
    "small_cache": lambda: told(sample_live.small_cache(), **{"kv.map": sample_live.small_map}),
    "no_scheduler": lambda: told(sample_live.no_scheduler(), **{"kv.map": sample_live.no_kv_map}),
    "dead": lambda: told(sample.dead()),
}


@pytest.mark.parametrize("size", [*SIZES, (60, 16)], ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("scene", KV)
def test_kv(snap_compare, scene, size):
    assert snap_compare(KV[scene](), terminal_size=size, press=["2"])


QUEUE = {
    "busy": (lambda: told(sample_live.live()), ["3"]),
    "empty": (lambda: told(sample.idle_cpu(), **{"requests.list": sample_live.requests(0, 0)}), ["3"]),
    "no_scheduler": (
        lambda: told(sample_live.no_scheduler(), **{"requests.list": sample_live.no_scheduler_requests}),
        ["3"],
    ),
    "hung": (lambda: told(sample_live.hung(), **{"requests.list": sample_live.hung_requests}), ["3"]),
    "stuck": (lambda: told(sample_live.stuck(), **{"requests.list": sample_live.stuck_requests}), ["3"]),
    "typing": (lambda: told(sample_live.live()), ["3", "slash", "7", "8"]),
    "detail": (lambda: told(sample_live.live()), ["3", "down", "enter"]),
    "abort": (lambda: told(sample_live.live()), ["3", "down", "A"]),
    "viewer": (lambda: told(sample_live.hung(), Role.VIEWER, **{"requests.list": sample_live.hung_requests}), ["3"]),
    "help": (lambda: told(sample_live.live()), ["3", "question_mark"]),
}


@pytest.mark.parametrize("size", [*SIZES, (60, 16)], ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("scene", QUEUE)
def test_queue(snap_compare, scene, size):
    make, keys = QUEUE[scene]
    assert snap_compare(make(), terminal_size=size, press=keys)


def dialled():
    """K was moved from 5 to 3, and fewer tokens come since."""
    moments = [
        sample_live.later(
            second, k=3 if second > 5 else 5, moved_at=5.5, tokens_per_s=1_650.0 if second > 15 else 2_140.0
        )
        for second in range(1, 19)
    ]
    return app(sample_live.live(), Role.ADMIN, *(SnapshotArrived(snapshot, NOW - 0.5) for snapshot in moments))


def throttled(snapshot=None, role=Role.ADMIN, **changes):
    """Over a gate whose sheet has these changes."""
    return told(snapshot or sample.serving(), role, **{"throttle.get": sample_throttle.sheet(**changes)})


PAUSED = Limit(value=True, profile=False, who="ops", reason="driver check", since=NOW_THERE - 125)
BY_THE_CONTROLLER = Limit(value=32, profile=64, who="auto", reason="KV 94 %", since=NOW_THERE - 4)

THROTTLE = {
    "calm": (
        lambda: throttled(limits=sample_throttle.limits(), auto=AutoState(), counts=GateCounts(inflight=12)),
        ["6"],
    ),
    "set": (lambda: throttled(), ["6"]),
    "by_the_controller": (
        lambda: throttled(
            limits=sample_throttle.limits(max_inflight=BY_THE_CONTROLLER),
            auto=msgspec.structs.replace(sample_throttle.sheet().auto, overruled_by=None),
        ),
        ["6"],
    ),
    "paused": (lambda: throttled(sample.paused(), limits=sample_throttle.limits(paused=PAUSED)), ["6", "P"]),
    "pending": (lambda: throttled(), ["6", "plus", "t", "t"]),
    "typing": (lambda: throttled(), ["6", *["down"] * 4, "enter", *"none!", "enter"]),
    "viewer": (lambda: throttled(role=Role.VIEWER), ["6"]),
    "dead": (lambda: throttled(sample.dead()), ["6", "end"]),
    "help": (lambda: throttled(), ["6", "question_mark"]),
}


@pytest.mark.parametrize("size", [*SIZES, (60, 16)], ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("scene", THROTTLE)
def test_throttle(snap_compare, scene, size):
    make, keys = THROTTLE[scene]
    assert snap_compare(make(), terminal_size=size, press=keys)


TRIAL = sample_live.speculation(recommendation=sample_live.trial())

TUNING = {
    "speculation": (lambda: told(sample_live.live()), ["4"]),
    "trial": (lambda: told(sample_live.live(speculation=TRIAL)), ["4"]),
    "one_window": (lambda: told(sample.serving()), ["4"]),
    "off": (lambda: told(sample.idle_cpu()), ["4"]),
    "speculation_help": (lambda: told(sample_live.live()), ["4", "question_mark"]),
    "dials": (lambda: told(sample_live.live()), ["8"]),
    "no_dials": (lambda: told(sample_live.no_scheduler()), ["8"]),
    "pending": (lambda: told(sample_live.live()), ["4", "a", "t"]),
    "typing": (lambda: told(sample_live.live()), ["8", "enter", "9", "9", "9", "enter"]),
    "slower": (dialled, ["8", "down", "down"]),
    "dials_viewer": (lambda: told(sample_live.live(), Role.VIEWER), ["8"]),
    "dials_dead": (lambda: told(sample.dead()), ["8"]),
    "dials_help": (lambda: told(sample_live.live()), ["8", "question_mark"]),
}


@pytest.mark.parametrize("size", [*SIZES, (60, 16)], ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("scene", TUNING)
def test_tuning(snap_compare, scene, size):
    make, keys = TUNING[scene]
    assert snap_compare(make(), terminal_size=size, press=keys)
