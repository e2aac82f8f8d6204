"""A change on a screen that has a desk for it, as lines: the question before it is sent, and what became of it."""

from __future__ import annotations

import textwrap
from typing import Any

from console import format as fmt
from console.change_desk import Desk
from console.lines import Line, Tone, line


def question(change: str) -> Line:
    """`change`: what would be done."""
    return line((f"  ▸ {change}? ", Tone.STRONG), ("enter", Tone.KEY), " sets it, ", ("esc", Tone.KEY), " leaves it")


def outcome(desk: Desk[Any], width: int, most_rows: int | None = None) -> list[Line]:
    """Of the last change; none while there is nothing to tell."""
    told, mark, tone = desk.failure or desk.done, "×" if desk.failure else "●", Tone.WARN if desk.failure else Tone.GOOD
    parts = textwrap.wrap(fmt.clean(told), max(20, width - 5), max_lines=most_rows, placeholder=" …")
    return [line((f"  {mark} " if i == 0 else "    ", tone), part) for i, part in enumerate(parts)]


def lasting(for_s: float | None) -> str:
    """` for 10 min`, ` for 1h00m`; empty for a change that stays."""
    if for_s is None:
        return ""
    return f" for {fmt.window(for_s) if for_s < 3_600 else fmt.duration(for_s)}"
