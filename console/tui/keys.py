"""Every action of the TUI, once: key, label, risk, when it applies.

Bindings, and in `offers.py` the footer, the help and what works now, all derive from this table, so that what is
offered, what is explained and what works cannot drift apart. Keys work on every terminal and through tmux: no function
keys, no ctrl+shift.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from textual.binding import Binding, BindingType

from console.consequence import (
    METHOD_ABORT,
    METHOD_CANCEL,
    METHOD_DIALS,
    METHOD_LIMITS,
    METHOD_RESTART,
    METHOD_STOP,
    METHOD_SWITCH,
)
from engine_host.protocol.methods import METHODS, Risk


@dataclass(frozen=True, slots=True)
class Action:
    name: str
    """Textual's name: `action_NAME` is what runs."""
    key: str
    shown: str
    """The key as the footer and help print it."""
    label: str
    help: str
    """Empty: another row of the table tells of it."""
    method: str | None = None
    """The control socket's method behind it; its risk class decides who may."""
    screens: frozenset[str] = frozenset()
    """Screens it belongs to, or places within one (`profiles.diff`); empty: all."""
    in_footer: bool = True

    @property
    def risk(self) -> Risk:
        return METHODS[self.method].risk if self.method is not None else Risk.READ


PAGE = 10
"""Rows a page key moves: fewer than fit on the smallest terminal, so that some stay in sight."""

FAR = 1_000_000
"""Rows to either end of any list."""

_ON_EVENTS = frozenset({"events"})
_ON_LIST = frozenset({"profiles"})
_ON_ANY_LIST = _ON_LIST | {"profiles.none"}
_ON_DIFF = frozenset({"profiles.diff"})
_ON_FORECAST = frozenset({"profiles.forecast"})
_ON_SWITCH = frozenset({"profiles.switch"})
_ON_CONFIRM = frozenset({"confirm"})
_ON_CONFIRM_SWITCH = frozenset({"confirm_switch"})
_ON_REQUEST = frozenset({"queue.one", "queue.one_filtered"})
_ON_GONE = frozenset({"queue.gone", "queue.gone_filtered"})
_ON_FILTERED = frozenset({"queue.one_filtered", "queue.gone_filtered", "queue.none_match"})
_ON_REQUESTS = _ON_REQUEST | _ON_FILTERED | {"queue.gone", "queue.none"}
_ON_DETAIL = frozenset({"queue.detail", "queue.detail_gone"})
_ON_APPLY, _ON_TRY = frozenset({"speculation.apply"}), frozenset({"speculation.try"})
_ON_SPECULATION = _ON_APPLY | _ON_TRY | {"speculation"}
_ON_STILL = frozenset({"dials.still", "dials.moved"})
_ON_PENDING = frozenset({"dials.pending"})
_ON_DIALS = _ON_STILL | _ON_PENDING
_ON_TYPED = frozenset({"throttle.typed", "throttle.typed_or_none"})
_ON_CHOSEN = frozenset({"throttle.chosen", "throttle.chosen_or_none"})
_ON_LIMITS = _ON_TYPED | _ON_CHOSEN
_ON_NONE = frozenset({"throttle.typed_or_none", "throttle.chosen_or_none"})
_ON_LIMIT_PENDING = frozenset({"throttle.pending"})
_ON_THROTTLE = _ON_LIMITS | _ON_LIMIT_PENDING
_BELOW_LIST = frozenset(
    f"profiles.{view}" for view in ("diff", "same", "forecast", "waiting", "refused", "outdated", "switch")
)
_ON_ROWS = _ON_LIST | _BELOW_LIST | _ON_REQUESTS | _ON_DETAIL | _ON_STILL | _ON_LIMITS
_SPANS = "for 1 min, 10 min, 1 h, 8 h, then for good again"
"""Of `console.change_desk.LASTS`."""
OWN_WAY_BACK = _BELOW_LIST | _ON_FILTERED | _ON_DETAIL | _ON_PENDING | _ON_LIMIT_PENDING
"""Places with a way back of their own, so that the general one is not told of."""

ACTIONS: tuple[Action, ...] = (
    Action("help", "question_mark", "?", "help", "this page; ? esc q or enter leaves it"),
    Action("screen('overview')", "1", "1", "overview", "the whole host on one page"),
    Action("screen('kv')", "2", "2", "kv", "the KV cache: how full, for how long, by what"),
    Action("screen('queue')", "3", "3", "queue", "every request; what hangs, what is stuck; end one"),
    Action("screen('speculation')", "4", "4", "spec", "speculation: acceptance by window and position, which K"),
    Action("screen('profiles')", "5", "5", "profiles", "compare profiles, switch to another"),
    Action("screen('throttle')", "6", "6", "throttle", "limits at the gate: set, pause, have it act by itself"),
    Action("screen('events')", "7", "7", "events", "what happened, newest first"),
    Action("screen('dials')", "8", "8", "dials", "live limits of the scheduler, and what moving one did"),
    Action("freeze", "p", "p", "freeze", "hold the page still, or let it go on; the host runs on"),
    Action("leave", "escape", "esc", "back", "one step back, at last to the overview", in_footer=False),
    Action("move(1)", "down,j", "↓", "older", "one event further back", screens=_ON_EVENTS),
    Action("move(-1)", "up,k", "↑", "newer", "one event towards now", screens=_ON_EVENTS, in_footer=False),
    Action(f"move({PAGE})", "pagedown,space", "pgdn", "page", "a page further back", screens=_ON_EVENTS),
    Action(f"move(-{PAGE})", "pageup", "pgup", "page", "a page towards now", screens=_ON_EVENTS, in_footer=False),
    Action(f"move({FAR})", "end,G", "end", "oldest", "the oldest event kept", screens=_ON_EVENTS, in_footer=False),
    Action(f"move(-{FAR})", "home,g", "home", "newest", "back to the newest", screens=_ON_EVENTS),
    Action("look_into", "enter,right,l", "enter", "detail", "all about one request", screens=_ON_REQUEST),
    Action(
        "look_into", "enter,right,l", "enter", "detail", "", screens=frozenset({"queue.gone", "queue.gone_filtered"})
    ),
    Action("sort", "s", "s", "sort", "by the next column, largest first", screens=_ON_REQUESTS),
    Action("type_filter", "slash", "/", "find", "only ids that contain a text", screens=_ON_REQUESTS),
    Action("next_state", "f", "f", "state", "only those in one state", screens=_ON_REQUESTS),
    Action(
        "ask_abort",
        "A,x",
        "A",
        "abort",
        "end one request with an error; asks first",
        method=METHOD_ABORT,
        screens=_ON_REQUEST | {"queue.detail"},
    ),
    Action("back", "escape", "esc", "all", "no filter any more", screens=_ON_FILTERED),
    Action("back", "escape,left", "esc", "list", "back to the list", screens=_ON_DETAIL),
    Action("drop_filter", "escape", "esc", "all", "no filter", screens=frozenset({"queue.typing"})),
    Action("apply", "a", "a", "apply", "propose the K that is recommended", METHOD_DIALS, _ON_APPLY),
    Action("apply", "a", "a", "try", "propose the K that is to be measured", METHOD_DIALS, _ON_TRY),
    Action("app.screen('dials')", "d", "d", "dials", "where K is set, as 8", screens=_ON_SPECULATION, in_footer=False),
    Action("nudge(1)", "plus,equals_sign,right", "+", "more", "one step up; enter sets it", METHOD_DIALS, _ON_DIALS),
    Action("nudge(-1)", "minus,left", "-", "less", "one step down; enter sets it", METHOD_DIALS, _ON_DIALS),
    Action("type_value", "enter", "enter", "value", "type a value", METHOD_DIALS, _ON_STILL),
    Action("send", "enter", "enter", "set it", "have the scheduler go by it", METHOD_DIALS, _ON_PENDING),
    Action("lasting", "t", "t", "next span", _SPANS, METHOD_DIALS, _ON_PENDING),
    Action("drop", "escape", "esc", "leave it", "change nothing", screens=_ON_PENDING),
    Action("revert", "u", "u", "revert", "undo the last move; asks first", METHOD_DIALS, frozenset({"dials.moved"})),
    Action("reset", "r", "r", "start value", "back to what it was started with", METHOD_DIALS, _ON_STILL),
    Action("stop_typing", "escape", "esc", "leave it", "change nothing", screens=frozenset({"dials.typing"})),
    Action("nudge(1)", "plus,equals_sign,right", "+", "more", "a step up; enter sets it", METHOD_LIMITS, _ON_THROTTLE),
    Action("nudge(-1)", "minus,left", "-", "less", "one step down; enter sets it", METHOD_LIMITS, _ON_THROTTLE),
    Action("type_value", "enter", "enter", "value", "type a value", METHOD_LIMITS, _ON_TYPED),
    Action("next_value", "enter", "enter", "next", "its next value; enter again sets it", METHOD_LIMITS, _ON_CHOSEN),
    Action("send", "enter", "enter", "set it", "have the gate go by it", METHOD_LIMITS, _ON_LIMIT_PENDING),
    Action("lasting", "t", "t", "next span", _SPANS, METHOD_LIMITS, _ON_LIMIT_PENDING),
    Action("drop", "escape", "esc", "leave it", "change nothing", screens=_ON_LIMIT_PENDING),
    Action("type_reason", "w", "w", "why", "type a reason, for whoever comes next", METHOD_LIMITS, _ON_LIMIT_PENDING),
    Action(
        "pause",
        "P",
        "P",
        "pause",
        "hold every new request, or let them in; asks first",
        METHOD_LIMITS,
        _ON_THROTTLE,
    ),
    Action("take_off", "n", "n", "no limit", "none, even where the profile has one", METHOD_LIMITS, _ON_NONE),
    Action("reset", "r", "r", "profile's", "back to what the profile says", METHOD_LIMITS, _ON_LIMITS),
    Action("stop_typing", "escape", "esc", "leave it", "change nothing", screens=frozenset({"throttle.typing"})),
    Action("back", "escape", "esc", "back", "one step back", screens=_BELOW_LIST),
    Action(
        "compare",
        "enter,right,l",
        "enter",
        "compare",
        "what would change against the running profile",
        method="profiles.diff",
        screens=_ON_LIST,
    ),
    Action(
        "dry_run",
        "enter,d",
        "enter",
        "dry run",
        "check it and forecast the switch; touches nothing",
        method="switch.forecast",
        screens=_ON_DIFF,
    ),
    Action(
        "dry_run",
        "d",
        "d",
        "dry run",
        "check it and forecast the switch; touches nothing",
        method="switch.forecast",
        screens=_ON_LIST,
    ),
    Action(
        "ask_switch",
        "enter",
        "enter",
        "switch",
        "asks first, with numbers; tier and drain can be set",
        method=METHOD_SWITCH,
        screens=_ON_FORECAST,
    ),
    Action(
        "dry_run_again",
        "d",
        "d",
        "dry run again",
        "check and forecast anew",
        method="switch.forecast",
        screens=frozenset({"profiles.forecast", "profiles.refused", "profiles.outdated"}),
    ),
    Action(
        "ask_cancel",
        "C",
        "C",
        "cancel the switch",
        "go back to the former profile; asks first",
        method=METHOD_CANCEL,
        screens=_ON_SWITCH,
    ),
    Action("watch", "w", "w", "last switch", "the switch under way, or the last one", screens=_ON_ANY_LIST),
    Action("watch", "w", "w", "last switch", "", screens=_BELOW_LIST - _ON_SWITCH, in_footer=False),
    Action(
        "reread",
        "r",
        "r",
        "reread",
        "have the host read the profile files again",
        method="profiles.list",
        screens=_ON_ANY_LIST,
    ),
    Action("move(1)", "down,j", "↓ ↑", "move", "also j k, pgdn pgup, home end", screens=_ON_ROWS, in_footer=False),
    Action("move(-1)", "up,k", "↑", "up", "", screens=_ON_ROWS, in_footer=False),
    Action(f"move({PAGE})", "pagedown,space", "pgdn", "page", "", screens=_ON_ROWS, in_footer=False),
    Action(f"move(-{PAGE})", "pageup", "pgup", "page", "", screens=_ON_ROWS, in_footer=False),
    Action(f"move({FAR})", "end,G", "end", "end", "", screens=_ON_ROWS, in_footer=False),
    Action(f"move(-{FAR})", "home,g", "home", "home", "", screens=_ON_ROWS, in_footer=False),
    Action(
        f"act('{METHOD_RESTART}')",
        "R",
        "R",
        "restart engine",
        "stop and start the engine; asks first, with numbers",
        method=METHOD_RESTART,
    ),
    Action(
        f"act('{METHOD_STOP}')",
        "S",
        "S",
        "stop host",
        "end engine and host; wants the host's name typed",
        method=METHOD_STOP,
    ),
    Action("next_tier", "t", "t", "tier", "another way to do it", screens=_ON_CONFIRM_SWITCH),
    Action("to_drain", "d", "d", "drain time", "set what requests get to finish", screens=_ON_CONFIRM_SWITCH),
    Action("app.focus_next", "right,down", "← →", "move", "", screens=_ON_CONFIRM),
    Action("app.focus_previous", "left,up", "←", "", "", screens=_ON_CONFIRM),
    Action("dismiss(False)", "escape", "esc", "cancel", "", screens=_ON_CONFIRM),
    Action("quit", "q", "q", "quit", "leave the console"),
    Action("hint_quit", "ctrl+c", "^C", "", "says how to quit; never ends anything", in_footer=False),
)


def bindings(screen: str | None = None, actions: Iterable[Action] = ACTIONS) -> list[BindingType]:
    """Those of the app, or those that belong to one screen and the places within it."""
    return [
        Binding(a.key, a.name, a.label, show=a.in_footer, priority=a.name == "hint_quit")
        for a in actions
        if (not a.screens if screen is None else any(place.split(".")[0] == screen for place in a.screens))
    ]


def action_for(method: str) -> Action:
    return next(a for a in ACTIONS if a.method == method)
