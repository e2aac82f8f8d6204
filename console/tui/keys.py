"""Every action of the TUI, once: key, label, risk, when it applies.

Bindings, footer, help screen and `check_action` all derive from this table, so that what is offered, what is
explained and what works cannot drift apart. Keys work on every terminal and through tmux: no function keys, no
ctrl+shift.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from textual.binding import Binding, BindingType

from console.consequence import METHOD_RESTART, METHOD_STOP
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
    method: str | None = None
    """The control socket's method behind it; its risk class decides who may."""
    screens: frozenset[str] = frozenset()
    """Screens it belongs to; empty: all."""
    in_footer: bool = True

    @property
    def risk(self) -> Risk:
        return METHODS[self.method].risk if self.method is not None else Risk.READ


_ON_EVENTS = frozenset({"events"})

ACTIONS: tuple[Action, ...] = (
    Action("help", "question_mark", "?", "help", "this page; ? esc q or enter leaves it"),
    Action("screen('overview')", "1", "1", "overview", "the whole host on one page"),
    Action("screen('events')", "7", "7", "events", "what happened, newest first"),
    Action("freeze", "p", "p", "freeze", "hold the page still, or let it go on; the host runs on"),
    Action("leave", "escape", "esc", "back", "to the overview", in_footer=False),
    Action("older", "down,j", "↓", "older", "one event further back", screens=_ON_EVENTS),
    Action("newer", "up,k", "↑", "newer", "one event towards now", screens=_ON_EVENTS, in_footer=False),
    Action("older_page", "pagedown,space", "pgdn", "page", "a page further back", screens=_ON_EVENTS),
    Action("newer_page", "pageup", "pgup", "page", "a page towards now", screens=_ON_EVENTS, in_footer=False),
    Action("oldest", "end,G", "end", "oldest", "the oldest event kept", screens=_ON_EVENTS, in_footer=False),
    Action("newest", "home,g", "home", "newest", "back to the newest", screens=_ON_EVENTS),
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
    Action("quit", "q", "q", "quit", "leave the console; the host runs on"),
    Action("hint_quit", "ctrl+c", "^C", "", "says how to quit; never ends anything", in_footer=False),
)


def bindings(actions: Iterable[Action] = ACTIONS) -> list[BindingType]:
    return [Binding(a.key, f"app.{a.name}", a.label, show=a.in_footer, priority=a.name == "hint_quit") for a in actions]


def refusal(action: Action, state: State) -> str | None:
    """Why the action cannot be taken now; None when it can."""
    if action.method is None:
        return None
    if state.link is not Link.UP:
        return f"{action.label}: off while there is no connection"
    if not may(state, action.risk):
        return f"{action.label}: needs {ROLE_NEEDED[action.risk]}"
    if state.frozen is not None:
        return f"{action.label}: off while the page is frozen (p), as its numbers are old"
    return None


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
    return action.name == f"screen('{screen}')"


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


def _by_need(actions: list[Action]) -> list[Action]:
    """The way out comes early, so that a narrow footer cuts something else."""
    return sorted(actions, key=lambda a: (a.name != "help", a.name != "quit"))


def help_lines(screen: str, state: State) -> list[Line]:
    """The table as a page; what cannot be done now says why."""
    rows: list[Line] = []
    for action in ACTIONS:
        if action.screens and screen not in action.screens:
            continue
        why_not = refusal(action, state)
        rows.append(
            line(
                (f"  {action.shown:>5}  ", Tone.KEY),
                (f"{action.label:<16}", Tone.STRONG if why_not is None else Tone.FAINT),
                (action.help, Tone.PLAIN if why_not is None else Tone.FAINT),
            )
        )
        if why_not is not None:
            rows.append(line(" " * 9, (f"off now: {why_not.split(': ', 1)[1]}", Tone.WARN)))
    return rows


def action_for(method: str) -> Action:
    return next(a for a in ACTIONS if a.method == method)
