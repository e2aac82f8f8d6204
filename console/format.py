"""Numbers, times and bars as an operator reads them.

Pure functions from a value to text: three significant digits, a unit, and an en dash for what is not known, because
a 0 that means "no idea" has sent people down the wrong road. Anything that came from outside (an event, an engine's
error line) goes through `clean` first: it may carry escape sequences that would drive the operator's terminal.
"""

from __future__ import annotations

import math
import time
import unicodedata
from collections.abc import Sequence

DASH = "–"
"""Unknown. Never 0, never an empty field that looks like a layout fault."""

_SI = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_BINARY = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
_LEVELS = "▁▂▃▄▅▆▇█"

ROUNDS_UP = 0.9995
"""From this share of a unit on, three digits round up into the next one: 999.6 ms is shown as 1.00 s."""

LONG_S = 10.0
"""From here on a span is read in whole seconds and minutes; below, the fractions matter."""


def significant(value: float | None) -> str:
    """Three significant digits of a number below 1000 in size; larger ones keep all their integer digits."""
    if value is None or not math.isfinite(value):
        return DASH
    if value == 0:
        return "0"
    size = abs(value)
    if size < 0.005:
        return "<0.01" if value > 0 else ">-0.01"
    decimals = 2 if size < 9.995 else 1 if size < 99.95 else 0
    return f"{value:.{decimals}f}"


def si(value: float | None) -> str:
    """2140 -> `2.14k`."""
    if value is None or not math.isfinite(value):
        return DASH
    for unit, letter in _SI:
        if abs(value) >= unit * ROUNDS_UP:
            return significant(value / unit) + letter
    return significant(value)


def rate(value: float | None) -> str:
    """Something per second; the unit stays beside an unknown value so that the column keeps its meaning."""
    return f"{si(value)} /s"


def count(value: int | None) -> str:
    """An exact number, grouped: `41,231`."""
    return DASH if value is None else f"{value:,}"


def factor(ratio: float | None) -> str:
    """`1.90x`."""
    return DASH if ratio is None else f"{significant(ratio)}x"


def many(number: int | None, noun: str) -> str:
    """`1 request`, `14 requests`, `– requests`."""
    return f"{count(number)} {noun}" + ("" if number == 1 else "s")


def percent(fraction: float | None) -> str:
    """A fraction as percent: 0.684 -> `68.4 %`."""
    if fraction is None or not math.isfinite(fraction):
        return DASH
    return f"{significant(fraction * 100)} %"


def latency(seconds: float | None) -> str:
    """A short time: `182 ms`, `1.21 s`; from 100 s on as `duration`."""
    if seconds is None or not math.isfinite(seconds):
        return DASH
    if seconds <= 0:
        return "0 ms"
    if seconds < 1e-6:
        return "<1 µs"
    if seconds < 1e-3 * ROUNDS_UP:
        return f"{significant(seconds * 1e6)} µs"
    if seconds < ROUNDS_UP:
        return f"{significant(seconds * 1e3)} ms"
    if seconds < 99.95:
        return f"{significant(seconds)} s"
    return duration(seconds)


def duration(seconds: float | None) -> str:
    """A long time in its two largest units: `42 s`, `12m05s`, `4h12m`, `3d04h`."""
    if seconds is None or not math.isfinite(seconds):
        return DASH
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02}h"


def span(seconds: float | None) -> str:
    """How long something took or will take, be it short or long: `20 ms`, `3.10 s`, `1m24s`."""
    return latency(seconds) if seconds is not None and seconds < LONG_S else duration(seconds)


def size(value: int | None) -> str:
    """Bytes in binary units: `131 GiB`."""
    if value is None:
        return DASH
    for unit, name in _BINARY:
        if abs(value) >= unit * ROUNDS_UP:
            return f"{significant(value / unit)} {name}"
    return f"{value} B"


def share(used: int | None, total: int | None) -> str:
    """`131 of 141 GiB`: both in one unit, of which the whole is ten or more, so that they compare at a glance."""
    if used is None or total is None:
        return f"{size(used)} of {size(total)}"
    for unit, name in _BINARY:
        if total >= unit * 10:
            return f"{significant(used / unit)} of {significant(total / unit)} {name}"
    return f"{used} of {total} B"


def clock(unix_time: float) -> str:
    """Time of day where the operator sits: `14:03:22`."""
    return _local("%H:%M:%S", unix_time)


def date(unix_time: float) -> str:
    """`2026-11-29 14:03:22`, for lists that reach back over days."""
    return _local("%Y-%m-%d %H:%M:%S", unix_time)


def _local(pattern: str, unix_time: float) -> str:
    try:
        return time.strftime(pattern, time.localtime(unix_time))
    except (OverflowError, ValueError, OSError):  # a host may send any number
        return DASH


def window(seconds: float | None) -> str:
    """The span a rate was taken over: `10 s`, `1 min`."""
    if seconds is None or not math.isfinite(seconds):
        return DASH
    if seconds >= 60 and seconds % 60 == 0:
        return f"{seconds / 60:.0f} min"
    return f"{significant(seconds).rstrip('0').rstrip('.') if seconds < 100 else f'{seconds:.0f}'} s"


def bar(fraction: float | None, width: int) -> str:
    """A gauge of exactly `width` cells, filled in half cells; unknown is drawn as dots, not as empty."""
    if fraction is None or not math.isfinite(fraction):
        return "·" * width
    halves = round(min(1.0, max(0.0, fraction)) * width * 2)
    if fraction > 0 and halves == 0:
        halves = 1
    full, half = divmod(halves, 2)
    return "█" * full + "▌" * half + "░" * (width - full - half)


def bucketed(
    values: Sequence[float | None], end_at: float, step_s: float, cell_s: float, width: int
) -> list[float | None]:
    """`width` cells of `cell_s` seconds up to `end_at`, each the largest value in it, unknown where none is known.

    Cell borders stand on multiples of `cell_s` rather than at `end_at`: cells keep their values as time passes, so a
    strip repaints its last cell and not, every second, the whole row.
    """
    cells: list[float | None] = [None] * width
    newest = math.floor(end_at / cell_s)
    for steps_back, value in enumerate(reversed(values)):
        at = newest - math.floor((end_at - steps_back * step_s) / cell_s)
        if at >= width:
            break
        if value is not None and math.isfinite(value):
            seen = cells[width - 1 - at]
            cells[width - 1 - at] = value if seen is None else max(seen, value)
    return cells


def strip(values: Sequence[float | None], top: float) -> str:
    """One cell a value, eight levels from 0 to `top`; unknown is a blank."""
    return chart(values, top, 1)[0]


def chart(values: Sequence[float | None], top: float, height: int) -> list[str]:
    """Columns of block glyphs, `height` rows, the highest row first. A known zero still shows its baseline."""
    steps = len(_LEVELS) * height
    rows = [""] * height
    for value in values:
        filled = 0
        if value is not None and math.isfinite(value):
            filled = max(1, round(min(1.0, max(0.0, value / top)) * steps) if top > 0 else 1)
        for row in range(height):
            level = min(len(_LEVELS), max(0, filled - (height - 1 - row) * len(_LEVELS)))
            rows[row] += _LEVELS[level - 1] if level else " "
    return rows


def clean(text: str) -> str:
    """Text from outside on one line, with nothing left in it that a terminal would obey."""
    return "".join(_plain(character) for character in text)


def _plain(character: str) -> str:
    if character in "\t\n\r":
        return " "
    # Cc: escape and friends. Cf: bidirectional overrides. Cs: lone surrogates, which no terminal can encode.
    return "�" if unicodedata.category(character) in {"Cc", "Cf", "Cs"} else character
