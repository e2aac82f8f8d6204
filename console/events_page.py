"""The events screen as lines: the newest first, long ones wrapped, scrolled by event.

Pure like the overview. The place is kept as the sequence number of the topmost event, so that new events do not push
away what somebody is reading.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from console import format as fmt
from console import panels
from console.frame import Moment, head, seen, sized
from console.lines import BLANK, Line, Tone, line
from console.model import State
from engine_host.protocol.events import Event


def events_page(live: State, moment: Moment, width: int, height: int, top_seq: int | None) -> list[Line]:
    """`top_seq` None: follow the newest."""
    state, now = seen(live, moment)
    body = _rows(upto(state.events, top_seq), width)
    return sized([*head(state, live, moment, now, width), BLANK, _heading(state, top_seq), *body], width, height)


def upto(events: Sequence[Event], top_seq: int | None) -> list[Event]:
    """Newest first, from `top_seq` back."""
    return [e for e in reversed(events) if top_seq is None or e.seq <= top_seq]


def _heading(state: State, top_seq: int | None) -> Line:
    total = len(state.events)
    newer = 0 if top_seq is None else sum(e.seq > top_seq for e in state.events)
    return line(
        ("Events ", Tone.LABEL),
        (f" {fmt.count(total)} kept here", Tone.FAINT),
        (f", {fmt.count(state.events_missed)} missed" if state.events_missed else "", Tone.WARN),
        (f"   ▲ {fmt.count(newer)} newer (home)" if newer else "   following the newest", Tone.FAINT),
    )


def _rows(events: Sequence[Event], width: int) -> list[Line]:
    if not events:
        return [line(("  none yet", Tone.FAINT))]
    rows: list[Line] = []
    for event in events:
        stamp, glyph, gap, (text, tone), who = panels.event_pieces(event, with_date=True)
        lead = f"{event.seq:>6} "
        indent = len(lead) + len(stamp[0]) + len(glyph[0] + gap[0])
        parts = textwrap.wrap(text + who[0], max(20, width - indent - 1)) or [""]
        rows.append(line((lead, Tone.FAINT), stamp, glyph, gap, (parts[0], tone)))
        rows += [line(" " * indent, (part, tone)) for part in parts[1:]]
    return rows
