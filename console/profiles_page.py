"""The profiles screen as lines: list, comparison with what runs, forecast, switch under way, result.

Pure like the overview: (state, desk, moment, size) -> exactly `height` lines. The list pages rather than scrolls, so
that moving the cursor repaints two rows; the other views scroll by row.
"""

from __future__ import annotations

from console import format as fmt
from console.forecast_panels import change_lines, forecast_lines, tier_lines
from console.frame import Moment, head, seen, sized
from console.lines import BLANK, Line, Tone, cells, clip, faded, fit, line, spread
from console.model import Link, State, is_stale, may
from console.profiles_desk import Desk, View, chosen, is_outdated, under_way
from console.switch_panels import STARTING, progress_lines, result_lines, wrapped
from console.words import ROLE_NEEDED
from engine_host.protocol.methods import METHODS
from engine_host.protocol.profiles import ProfileDiff, ProfileList, ProfileSummary
from engine_host.protocol.switching import SwitchProgress

HEAD = 4
"""Rows above every view: title, banner, a blank, the heading."""

ABOUT = 5
"""Rows below the list that tell all about the chosen profile."""

DIGEST = 10
"""Cells of a digest's column."""

CHECKING = (
    "The host checks the profile and touches nothing: does the configuration build, are the files there, do the "
    "tokenizers agree, does it fit into the memory …"
)

MIN_LIST = 3
"""Rows of the list on however small a terminal."""


def profiles_page(live: State, desk: Desk, moment: Moment, width: int, height: int) -> list[Line]:
    state, now = seen(live, moment)
    rows = [*head(state, live, moment, now, width), BLANK]
    if desk.view is View.LIST:
        rows += _list_view(state, desk, width, height - len(rows))
    else:
        body = _body(state, desk, now, width)
        room = max(1, height - HEAD)
        top = min(desk.top, max(0, len(body) - room))
        below = len(body) - room - top
        more = f"↓ {fmt.many(below, 'more row')}" if below > 0 else "↑ the end" if top else ""
        rows.append(spread(_heading(state, desk, width), line((more, Tone.NOTICE)), width))
        rows += body[top : top + room]
    if is_stale(state, now):
        rows[HEAD:] = faded(rows[HEAD:])
    return sized(rows, width, height)


def overhang(state: State, desk: Desk, now: float, width: int, height: int) -> int:
    """Rows of the view beyond the screen: how far it can be scrolled."""
    return max(0, len(_body(state, desk, now, width)) - max(1, height - HEAD)) if desk.view is not View.LIST else 0


def running(state: State, desk: Desk) -> str | None:
    """The name of the profile that runs, from the newest source."""
    if state.snapshot is not None:
        return state.snapshot.profile.name
    marked = [p.name for p in desk.profiles.profiles if p.is_running] if desk.profiles is not None else []
    return marked[0] if marked else None


def _heading(state: State, desk: Desk, width: int) -> Line:
    if desk.view is View.SWITCH:
        return line(("Last switch" if under_way(state) is None and not desk.asked else "Switch", Tone.LABEL))
    step = {
        View.DIFF: f"compared with {fmt.clean(running(state, desk) or fmt.DASH)}, which runs",
        View.FORECAST: "dry run",
    }[desk.view]
    return line(("Profiles › ", Tone.LABEL), (clip(fmt.clean(desk.chosen), width // 3), Tone.STRONG), f" › {step}")


# The list


def _list_view(state: State, desk: Desk, width: int, height: int) -> list[Line]:
    listed = desk.profiles
    if listed is None:
        told = _failure(desk, width) or [line(("  Reading the host's profiles …", Tone.FAINT))]
        if state.link is not Link.UP:
            told = [line(("  Not read yet: there is no connection to the host.", Tone.FAINT))]
        return [line(("Profiles", Tone.LABEL)), *told]
    notes = _notes(state, desk, width)
    if not listed.profiles:
        return [
            line(("Profiles", Tone.LABEL), (f"   none in {fmt.clean(listed.directory)}", Tone.FAINT)),
            *notes,
            BLANK,
            line("  Put profile files (NAME.toml) into that directory, then press ", ("r", Tone.KEY), "."),
            line(("  Another directory: engine-host serve PROFILE --profiles-dir DIR", Tone.FAINT)),
        ]
    room = max(MIN_LIST, height - 2 - len(notes) - ABOUT)
    names = [p.name for p in listed.profiles]
    at = names.index(desk.chosen) if desk.chosen in names else 0
    first = at // room * room
    shown = listed.profiles[first : first + room]
    runs = running(state, desk)
    name_width = max(8, min(max(len(fmt.clean(name)) for name in names), width * 2 // 5))
    rows = [_list_heading(listed, first, len(shown), width), *notes, _columns(name_width)]
    rows += [_row(p, p.name == runs, p.name == desk.chosen, name_width, width) for p in shown]
    rows += [BLANK] * (min(room, len(names)) - len(shown))
    return [*rows, BLANK, *_about(listed.profiles[at], runs, width)]


def _list_heading(listed: ProfileList, first: int, shown: int, width: int) -> Line:
    total = len(listed.profiles)
    where = f"{first + 1} to {first + shown} of {total}" if shown < total else ""
    return spread(
        line(("Profiles", Tone.LABEL), (f"   {total} in {fmt.clean(listed.directory)}", Tone.FAINT)),
        line((where, Tone.NOTICE)),
        width,
    )


def _columns(name_width: int) -> Line:
    return line((f"    {'name':<{name_width}}  {'digest':<{DIGEST}}", Tone.FAINT))


def _row(profile: ProfileSummary, is_running: bool, is_chosen: bool, name_width: int, width: int) -> Line:
    name = clip(fmt.clean(profile.name), name_width)
    name += " " * (name_width - cells(line(name)))
    digest = clip(fmt.clean(profile.digest), DIGEST - 2) if profile.digest is not None else fmt.DASH
    glyph, state_word, tone = "  ", "", Tone.PLAIN
    if is_running:
        glyph, state_word, tone = "● ", "RUNNING  ", Tone.GOOD
        if profile.has_changed:
            state_word = "RUNNING, ▲ its file has changed since  "
    elif profile.error is not None:
        glyph, state_word, tone = "× ", "REFUSED  ", Tone.WARN
    told = fmt.clean(profile.error if profile.error is not None else profile.description)
    mark = "▸ " if is_chosen else "  "
    row = fit(line(mark, (glyph, tone), name, f"  {digest:<{DIGEST}}", (state_word, tone), told), width)
    return tuple((text, Tone.CHOSEN) for text, _ in row) if is_chosen else row


def _about(profile: ProfileSummary, runs: str | None, width: int) -> list[Line]:
    """All about the chosen one that its row may have had to cut."""
    rows = [line((fmt.clean(profile.name), Tone.STRONG), (f"   {fmt.clean(profile.path)}", Tone.FAINT))]
    if profile.error is not None:
        return [*rows, *(line("  ", (part, Tone.WARN)) for part in wrapped(profile.error, width - 3))][: ABOUT - 1]
    rows += [line("  ", part) for part in wrapped(profile.description or "no description", width - 3)]
    if profile.name == runs and profile.has_changed:
        rows.append(line(("  ▲ Its file has changed since the engine was started with it.", Tone.WARN)))
    return rows[: ABOUT - 1]


def _notes(state: State, desk: Desk, width: int) -> list[Line]:
    """What the operator has to know before using the list."""
    return [*_failure(desk, width), *_somebody_switches(state, width), *_read_only(state)]


def _somebody_switches(state: State, width: int) -> list[Line]:
    progress = under_way(state)
    if progress is None:
        return []
    goes = f"  ▲ {fmt.clean(progress.who)} is switching to {fmt.clean(progress.to_profile)}; "
    return [line((clip(goes, width - 20), Tone.WARN), ("w", Tone.KEY), (" shows it", Tone.PLAIN))]


def _read_only(state: State) -> list[Line]:
    if state.hello is None or may(state, METHODS["switch"].risk):
        return []
    needed = ROLE_NEEDED[METHODS["switch"].risk]
    return [line((f"  Read-only: look, compare and dry-run; to switch needs {needed}.", Tone.NOTICE))]


def _failure(desk: Desk, width: int) -> list[Line]:
    return [
        line(("  × " if i == 0 else "    ", Tone.WARN), (part, Tone.STRONG))
        for i, part in enumerate(wrapped(desk.failure, width - 5) if desk.failure else [])
    ]


# The other views


def _body(state: State, desk: Desk, now: float, width: int) -> list[Line]:
    match desk.view:
        case View.DIFF:
            return [*_somebody_switches(state, width), *_diff_view(desk, width)]
        case View.FORECAST:
            return [*_somebody_switches(state, width), *_forecast_view(state, desk, now, width)]
        case _:
            return _switch_view(state, desk, width)


def _diff_view(desk: Desk, width: int) -> list[Line]:
    profile = chosen(desk)
    if profile is not None and profile.error is not None:
        return [
            line((f" × REFUSED: {fmt.clean(profile.path)} ", Tone.BAD)),
            *(line("  ", part) for part in wrapped(profile.error, width - 3)),
        ]
    if desk.failure:
        return _failure(desk, width)
    if desk.diff is None:
        return [line(("  Comparing …", Tone.FAINT))]
    if not desk.diff.changes:
        return [line(("  Nothing differs from what runs.", Tone.GOOD))]
    return [*_summary(desk.diff), BLANK, *change_lines(desk.diff.changes, width), BLANK, *_meanings(desk.diff)]


def _summary(diff: ProfileDiff) -> list[Line]:
    number = len(diff.changes)
    return [
        line(f"  {number} {'key differs' if number == 1 else 'keys differ'}: now → then. The tier says what it takes.")
    ]


def _meanings(diff: ProfileDiff) -> list[Line]:
    return tier_lines(diff.changes)


def _forecast_view(state: State, desk: Desk, now: float, width: int) -> list[Line]:
    if desk.failure:
        return _failure(desk, width)
    if desk.told is None:
        return [
            *(line("  ", part) for part in wrapped(CHECKING, width - 3)),
            line((f"  Asked {fmt.duration(now - desk.asked_at)} ago; it takes up to half a minute.", Tone.FAINT)),
        ]
    if is_outdated(desk):
        said = "  ▲ The host's state has changed since this dry run; make it anew: "
        return [line((said, Tone.WARN), ("d", Tone.KEY)), *forecast_lines(desk.told.forecast, width)]
    return [*_read_only(state), *forecast_lines(desk.told.forecast, width)]


def _switch_view(state: State, desk: Desk, width: int) -> list[Line]:
    said = _failure(desk, width)
    said += [BLANK] if said else []
    progress = under_way(state)
    if progress is not None:
        return [*said, *_under_way(state, desk, progress, width)]
    if desk.asked:
        return [line(f"  Asked to switch to {fmt.clean(desk.asked)}; waiting for the host to begin …")]
    if desk.last is not None:
        return [
            *said,
            *([line(("The host's last switch:", Tone.LABEL))] if said else []),
            *result_lines(desk.last, width),
        ]
    return said or [line(("  No switch since this host started, or it is not read yet.", Tone.FAINT))]


def _under_way(state: State, desk: Desk, progress: SwitchProgress, width: int) -> list[Line]:
    told = desk.told.forecast if desk.told is not None else None
    to_come = told.phases if told is not None and told.to_profile == progress.to_profile else []
    starts = any(p.name in STARTING and p.took_s is None for p in progress.phases)
    doing = state.snapshot.engine.phase if starts and state.snapshot is not None else None
    rows = [*progress_lines(progress, width, doing=doing, to_come=to_come), BLANK]
    held = state.snapshot.queue.held if state.snapshot is not None else None
    if held:
        rows.append(line(f"  {fmt.many(held, 'request')} held at the gate until it has ended."))
    if not progress.can_cancel:
        rows.append(line(("  It can no longer be cancelled; if it fails, the host goes back by itself.", Tone.FAINT)))
    elif may(state, METHODS["switch.cancel"].risk):
        rows.append(line("  It can still be cancelled: ", ("C", Tone.KEY)))
    return rows
