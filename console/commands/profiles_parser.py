"""The command line of `vllm-console profiles`; light, as every start of the console reads it."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

AddCommand = Callable[[Any, str, str, str], argparse.ArgumentParser]
"""(subparsers, name, summary, examples): a command with its help and `-t`, as `console.cli` makes them."""


def add_profiles(commands: Any, add_command: AddCommand) -> None:
    profiles = add_command(
        commands,
        "profiles",
        "profiles: list, show, diff, check, reload, import, export",
        "profiles list\nprofiles diff demo latency\nprofiles check latency --on-host",
    )
    actions = profiles.add_subparsers(dest="action", metavar="ACTION", required=True)

    def action(name: str, summary: str, examples: str) -> argparse.ArgumentParser:
        command = add_command(actions, name, summary, examples)
        command.add_argument("--json", action="store_true", help="JSON on standard output and nothing else")
        return command

    listed = action("list", "the profiles there are", "profiles list\nprofiles list --on-host --json")
    shown = action("show", "the effective values of one", "profiles show latency\nprofiles show latency --json")
    shown.add_argument("name", metavar="NAME")
    diff = action(
        "diff",
        "what differs, and which tier each change needs",
        "profiles diff demo latency\nprofiles diff running latency\nprofiles diff latency --on-host",
    )
    diff.add_argument("before", metavar="BEFORE", nargs="?", help='a profile, or "running": what the host runs')
    diff.add_argument("after", metavar="AFTER")
    check = action(
        "check",
        "check profiles, touch nothing; exit 2 when one is invalid",
        "profiles check\nprofiles check latency --strict\nprofiles check latency --on-host",
    )
    check.add_argument("names", metavar="NAME", nargs="*", help="default: every profile of the directory")
    check.add_argument("--strict", action="store_true", help="warnings count as errors")
    for command in (listed, shown, diff, check):
        _directory(command)
        command.add_argument("--on-host", action="store_true", help="ask the host (-t says which) for its profiles")

    reload = action(
        "reload",
        "have a host read its profiles anew and tell what has changed",
        "profiles reload\nprofiles reload --json",
    )
    reload.add_argument("--reason", default="", help="kept in the audit log")

    brought = action(
        "import",
        "a profile from a `vllm serve` command line or vLLM's YAML",
        "profiles import start.sh -o profiles/mine.toml\nprofiles import config.yaml\n"
        "profiles import -- vllm serve org/model -tp 2 --max-model-len 8k",
    )
    brought.add_argument(
        "source",
        metavar="SOURCE",
        nargs="+",
        help="a file, - for standard input, a quoted command line, or its words after --",
    )
    export = action(
        "export",
        "a profile as a `vllm serve` command line or YAML",
        "profiles export latency\nprofiles export latency --format yaml -o latency.yaml",
    )
    export.add_argument("name", metavar="NAME")
    export.add_argument("--format", choices=("command", "yaml"), default="command", help="default: command")
    _directory(export)
    for command in (brought, export):
        command.add_argument("-o", "--output", type=Path, metavar="FILE", help="write there instead of standard output")
        command.add_argument("--force", action="store_true", help="replace FILE when it exists")


def _directory(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--profiles-dir",
        type=Path,
        default=Path("profiles"),
        metavar="D",
        help="where names are looked up (default: ./profiles); paths are taken as they are",
    )
