"""How a finding is made and how its numbers are written: an id, a fact with numbers, a remedy.

One finding is one cause. A check that cannot look says so in `Preflight.unchecked` and finds nothing.
"""

from __future__ import annotations

from engine_host.protocol.events import Severity
from engine_host.protocol.profiles import Finding

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def error(id: str, text: str, remedy: str = "") -> Finding:
    """Refuses the profile."""
    return Finding(id=id, severity=Severity.ERROR, text=text, remedy=remedy)


def warning(id: str, text: str, remedy: str = "") -> Finding:
    return Finding(id=id, severity=Severity.WARNING, text=text, remedy=remedy)


def info(id: str, text: str, remedy: str = "") -> Finding:
    return Finding(id=id, severity=Severity.INFO, text=text, remedy=remedy)


def amount(size_bytes: float) -> str:
    """A size in the largest binary unit that keeps it at 1 or more: `71.5 MiB`."""
    value = float(size_bytes)
    for unit in _UNITS[:-1]:
        if abs(value) < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.3g} {unit}"
        value /= 1024
    return f"{value:.3g} {_UNITS[-1]}"


def several(names: list[str], limit: int = 3) -> str:
    """`a, b, c and 4 more`."""
    shown = ", ".join(names[:limit])
    return f"{shown} and {len(names) - limit} more" if len(names) > limit else shown
