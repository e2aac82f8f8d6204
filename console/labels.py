"""The first column of every page, and the window behind a figure: what makes rows of different panels line up."""

from __future__ import annotations

from console import format as fmt
from console.lines import Piece, Tone

LABEL = 11
"""Width of the first column."""

WINDOW_NAMES = {"10s": "10 s", "1m": "1 min", "5m": "5 min"}


def label(text: str) -> Piece:
    return f"{text:<{LABEL}}", Tone.LABEL


def sub(text: str) -> Piece:
    return f"  {text:<{LABEL - 2}}", Tone.PLAIN


def over(window_s: float | None) -> Piece:
    """The window that a rate or ratio was taken over; nothing while it has none."""
    return ("" if window_s is None else f"  ({fmt.window(window_s)})", Tone.FAINT)
