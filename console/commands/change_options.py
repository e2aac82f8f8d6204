"""The options that every command shares which changes something; light, as every start of the console reads it."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from console.argument_types import Number, Span

LONGEST_S = 604_800.0
"""A week: a limit that is to stay belongs into the profile."""


def add_span(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--for",
        dest="for_s",
        type=Span(1.0, LONGEST_S),
        metavar="SPAN",
        help="then the former value returns: 90s, 10m, 1h; default: it stays",
    )


def add_expect(command: argparse.ArgumentParser, seen: Callable[[str], Any]) -> None:
    """`seen`: reads a name and its value."""
    command.add_argument(
        "--expect",
        action="append",
        default=[],
        type=seen,
        metavar="NAME=VALUE",
        help="refuse unless this is the value in force",
    )


def add_reason(command: argparse.ArgumentParser, kept_in: str = "the audit log") -> None:
    command.add_argument("--reason", default="", metavar="TEXT", help=f"why, for {kept_in}")


def add_timeout(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--timeout", type=Number(0.1, 3600.0), default=30.0, metavar="S", help="how long to wait for the outcome"
    )


def add_json(command: argparse.ArgumentParser) -> None:
    command.add_argument("--json", action="store_true", help="print the outcome as one JSON object")
