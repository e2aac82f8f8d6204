"""Every action of the TUI, once: key, label, risk, when it applies.

Bindings, footer, help screen and `check_action` all derive from this table, so that what is offered, what is
explained and what works cannot drift apart. Keys work on every terminal and through tmux: no function keys, no
ctrl+shift.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from textual.binding import Binding, BindingType

from console.consequence import METHOD_CANCEL, METHOD_RESTART, METHOD_STOP, METHOD_SWITCH, who_switches
from console.lines import Line, Tone, cells, line
from console.model import Link, State, may
from console.words import ROLE_NEEDED
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
_BELOW_LIST = frozenset(
    f"profiles.{view}" for view in ("diff", "same", "forecast", "waiting", "refused", "outdated", "switch")
)
_ON_PROFILES = _ON_LIST | _BELOW_LIST

ACTIONS: tuple[Action, ...] = (
    Action("help", "question_mark", "?", "help", "this page; ? esc q or enter leaves it"),
    Action("screen('overview')", "1", "1", "overview", "the whole host on one page"),
    Action("screen('kv')", "2", "2", "kv", "the KV cache: how full, for how long, by what"),
    Action("screen('profiles')", "5", "5", "profiles", "compare profiles, switch to another"),
    Action("screen('events')", "7", "7", "events", "what happened, newest first"),
    Action("freeze", "p", "p", "freeze", "hold the page still, or let it go on; the host runs on"),
    Action("leave", "escape", "esc", "back", "one step back, at last to the overview", in_footer=False),
    Action("move(1)", "down,j", "↓", "older", "one event further back", screens=_ON_EVENTS),
    Action("move(-1)", "up,k", "↑", "newer", "one event towards now", screens=_ON_EVENTS, in_footer=False),
    Action(f"move({PAGE})", "pagedown,space", "pgdn", "page", "a page further back", screens=_ON_EVENTS),
    Action(f"move(-{PAGE})", "pageup", "pgup", "page", "a page towards now", screens=_ON_EVENTS, in_footer=False),
    Action(f"move({FAR})", "end,G", "end", "oldest", "the oldest event kept", screens=_ON_EVENTS, in_footer=False),
    Action(f"move(-{FAR})", "home,g", "home", "newest", "back to the newest", screens=_ON_EVENTS),
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
    Action("move(1)", "down,j", "↓ ↑", "move", "also j k, pgdn pgup, home end", screens=_ON_PROFILES, in_footer=False),
    Action("move(-1)", "up,k", "↑", "up", "", screens=_ON_PROFILES, in_footer=False),
    Action(f"move({PAGE})", "pagedown,space", "pgdn", "page", "", screens=_ON_PROFILES, in_footer=False),
    Action(f"move(-{PAGE})", "pageup", "pgup", "page", "", screens=_ON_PROFILES, in_footer=False),
    Action(f"move({FAR})", "end,G", "end", "end", "", screens=_ON_PROFILES, in_footer=False),
    Action(f"move(-{FAR})", "home,g", "home", "home", "", screens=_ON_PROFILES, in_footer=False),
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


def works(name: str, parameters: tuple[object, ...], place: str, state: State) -> bool:
    """Whether an action of a screen can be taken at this place, now."""
    whole = f"{name}({', '.join(repr(p) for p in parameters)})" if parameters else name
    return any(a.name == whole and place in a.screens and refusal(a, state) is None for a in ACTIONS)


def refusal(action: Action, state: State) -> str | None:
    """Why the action cannot be taken now; None when it can."""
    if action.method is None:
        return None
    if state.link is not Link.UP:
        return f"{action.label}: off while there is no connection"
    if not may(state, action.risk):
        return f"{action.label}: needs {ROLE_NEEDED[action.risk]}"
    if action.risk is not Risk.READ and state.frozen is not None:
        return f"{action.label}: off while the page is frozen (p), as its numbers are old"
    under_way = state.snapshot.engine.switch if state.snapshot is not None else None
    if action.method == METHOD_CANCEL:
        return None if under_way is not None and under_way.can_cancel else f"{action.label}: it can't be any more"
    if action.method in {METHOD_SWITCH, METHOD_RESTART} and under_way is not None:
        return f"{action.label}: off while {who_switches(under_way)}"
    return None


def quitting(state: State) -> str:
    """What quitting does, for a sentence."""
    return "leave the console; " + ("its host is stopped too" if state.quit_stops_host else "the host runs on")


def answer(key: str, shown: str, place: str, state: State) -> str:
    """What to say to a key that does nothing here and now; empty for one that does something.

    `shown` is how the key is named to the operator.
    """
    here = [a for a in ACTIONS if key in a.key.split(",") and (not a.screens or place in a.screens)]
    if not here:
        return f"{shown} does nothing here; ? shows the keys that do."
    reasons = [refusal(action, state) for action in here]
    return "" if None in reasons else f"{reasons[0]}."


def offered(screen: str, state: State) -> list[Action]:
    """What the footer shows on this screen, to this role, now."""
    return [
        a
        for a in ACTIONS
        if a.in_footer
        and (not a.screens or screen in a.screens)
        and refusal(a, state) is None
        and not _is_here(a, screen)
    ]


def _is_here(action: Action, screen: str) -> bool:
    """The screen one is on is not offered again."""
    return action.name == f"screen('{screen.split('.')[0]}')"


def footer(screen: str, state: State, width: int) -> Line:
    """The keys that fit."""
    row: Line = ()
    for action in _by_need(offered(screen, state)):
        label = "go on" if action.name == "freeze" and state.frozen is not None else action.label
        piece = line((action.shown, Tone.KEY), f" {label}  ")
        if cells((*row, *piece)) > width:
            break
        row = (*row, *piece)
    return row


def legend(places: Sequence[str]) -> str:
    """The keys of a dialog, for its last row."""
    return "   ".join(f"{a.shown} {a.label}" for place in places for a in ACTIONS if place in a.screens and a.label)


def _by_need(actions: list[Action]) -> list[Action]:
    """The way out comes early and what this place is for next, so that a narrow footer cuts something else."""
    return sorted(actions, key=lambda a: (a.name != "help", a.name != "quit", not a.screens))


def help_lines(screen: str, state: State) -> list[Line]:
    """The table as a page; what cannot be done now says why."""
    rows: list[Line] = []
    # Where a place has its own way back, the general one is not told twice.
    hidden = {"leave"} if screen in _BELOW_LIST else set()
    for action in ACTIONS:
        if (action.screens and screen not in action.screens) or action.name in hidden or not action.help:
            continue
        why_not = refusal(action, state)
        told = quitting(state) if action.name == "quit" else action.help
        rows.append(
            line(
                (f"  {action.shown:>5}  ", Tone.KEY),
                (f"{action.label:<16}", Tone.STRONG if why_not is None else Tone.FAINT),
                (told, Tone.PLAIN if why_not is None else Tone.FAINT),
            )
        )
        if why_not is not None:
            rows.append(line(" " * 9, (f"off now: {why_not.split(': ', 1)[1]}", Tone.WARN)))
    return rows


def action_for(method: str) -> Action:
    return next(a for a in ACTIONS if a.method == method)
