"""What of the action table is offered here and now, to this role: footer, help, and the answer to a dead key."""

from __future__ import annotations

from collections.abc import Sequence

from console.consequence import METHOD_CANCEL, METHOD_RESTART, METHOD_SWITCH, who_switches
from console.lines import Line, Tone, cells, line
from console.model import Link, State, may
from console.tui.keys import ACTIONS, OWN_WAY_BACK, Action
from console.words import ROLE_NEEDED
from engine_host.protocol.methods import Risk


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
    for action in _by_need(offered(screen, state), is_frozen=state.frozen is not None):
        piece = line((action.shown, Tone.KEY), f" {_label(action, state)}")
        following = (*row, *line("  " if row else ""), *piece)
        if cells(following) > width:
            break
        row = following
    return row


def _label(action: Action, state: State) -> str:
    """What a key that goes there and back does next."""
    if action.name == "freeze" and state.frozen is not None:
        return "go on"
    if action.name == "pause" and state.snapshot is not None and state.snapshot.throttle.paused:
        return "resume"
    return action.label


def legend(places: Sequence[str]) -> str:
    """The keys of a dialog, for its last row."""
    return "   ".join(f"{a.shown} {a.label}" for place in places for a in ACTIONS if place in a.screens and a.label)


def _by_need(actions: list[Action], *, is_frozen: bool) -> list[Action]:
    """The way out comes early and what this place is for next, so that a narrow footer cuts something else."""
    return sorted(
        actions,
        key=lambda a: (a.name != "help", a.name != "quit", not (is_frozen and a.name == "freeze"), not a.screens),
    )


def help_lines(screen: str, state: State) -> list[Line]:
    """The table as a page; what cannot be done now says why."""
    rows: list[Line] = []
    # Where a place has its own way back, the general one is not told twice.
    hidden = {"leave"} if screen in OWN_WAY_BACK else set()
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
