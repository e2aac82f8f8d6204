"""`profiles`: list, show, diff, check on a directory of this machine or on a host; import and export here.

Without a host named (-t, --on-host) nothing is connected to: a working copy on a laptop is enough. What only a host
can know is then said to be unchecked.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from console import format as fmt
from console.call_errors import CallFailed
from console.client import NO_PARAMS, READ_DEADLINE_S, connected
from console.commands.output import write_json
from console.connect import resolve
from console.consequence import FORECAST_DEADLINE_S
from engine_host.profiles import Profile, ProfileDirectory, detail_of, diff_profiles, find_profile, load_profile
from engine_host.profiles.shape_check import UNCHECKED, shape_check
from engine_host.protocol.envelope import ErrorCode
from engine_host.protocol.errors import EXIT_DONE, EXIT_INVALID, OperatorError
from engine_host.protocol.events import Severity
from engine_host.protocol.methods import DiffParams, ProfileName
from engine_host.protocol.profiles import Finding, Preflight, ProfileDetail, ProfileDiff, ProfileList

RUNNING = "running"
"""In place of a profile's name in `diff`: what the host's engine was started with."""

R = TypeVar("R")

_encode = msgspec.json.Encoder().encode


def run(arguments: argparse.Namespace) -> int:
    match arguments.action:
        case "list":
            return _list(arguments)
        case "show":
            return _show(arguments)
        case "diff":
            return _diff(arguments)
        case "check":
            return _check(arguments)
        case "reload":
            from console.commands.profiles_reload import reload

            return reload(arguments.target, arguments.reason, as_json=arguments.json)
        case _:
            from console.commands.profiles_exchange import export, import_

            return (import_ if arguments.action == "import" else export)(arguments)


def _list(arguments: argparse.Namespace) -> int:
    found = _listed(arguments)
    if arguments.json:
        write_json(_encode(found))
    else:
        from console.commands import profiles_text
        from console.commands.output import width, write_lines

        write_lines(profiles_text.list_lines(found, width()))
    return EXIT_DONE


def _listed(arguments: argparse.Namespace) -> ProfileList:
    return _ask(arguments, "profiles.list", ProfileList) if _is_on_host(arguments) else _directory(arguments).list()


def _show(arguments: argparse.Namespace) -> int:
    if _is_on_host(arguments):
        detail = _ask(arguments, "profiles.get", ProfileDetail, ProfileName(name=arguments.name))
    else:
        detail = detail_of(local_profile(arguments.name, arguments.profiles_dir))
    if arguments.json:
        write_json(_encode(detail))
    else:
        from console.commands import profiles_text
        from console.commands.output import write_lines

        write_lines(profiles_text.detail_lines(detail))
    return EXIT_DONE


def _diff(arguments: argparse.Namespace) -> int:
    before = None if arguments.before == RUNNING else arguments.before
    _tell_of_a_file_called_running(arguments)
    if _is_on_host(arguments) or arguments.before == RUNNING:
        diff = _ask(arguments, "profiles.diff", ProfileDiff, DiffParams(before=before, after=arguments.after))
    elif before is None:
        raise OperatorError(
            f"diff {arguments.after}: with what?",
            "Name two profiles, or compare with what a host runs: vllm-console profiles diff running "
            f"{arguments.after}",
        )
    else:
        old, new = (local_profile(name, arguments.profiles_dir) for name in (before, arguments.after))
        diff = diff_profiles(old, new)
    if arguments.json:
        write_json(_encode(diff))
    else:
        from console.commands import profiles_text
        from console.commands.output import width, write_lines

        write_lines(profiles_text.diff_lines(diff, width()))
    return EXIT_DONE


def _tell_of_a_file_called_running(arguments: argparse.Namespace) -> None:
    """The word means what the host runs only in the first place. Raises `OperatorError` for one in the second."""
    file = arguments.profiles_dir / f"{RUNNING}.toml"
    if arguments.before == RUNNING and file.exists():
        print(
            f'vllm-console: "{RUNNING}" is what the host runs, not the profile {fmt.clean(str(file))}; '
            f"for that one write {RUNNING}.toml",
            file=sys.stderr,
        )
    if arguments.after == RUNNING and not _is_on_host(arguments) and not file.exists():
        raise OperatorError(
            f'no profile "{RUNNING}" in {arguments.profiles_dir}: what the host runs is named first',
            f"write: vllm-console profiles diff {RUNNING} {arguments.before or 'PROFILE'}",
        )


def _check(arguments: argparse.Namespace) -> int:
    passed = True
    for result in _results(arguments, arguments.names or _every_name(arguments)):
        passed = passed and _passes(result, arguments.strict)
        if arguments.json:
            write_json(_encode(result))
        else:
            from console.commands import profiles_text
            from console.commands.output import write_lines

            write_lines(profiles_text.check_lines(result, is_from_host=_is_on_host(arguments)))
    return EXIT_DONE if passed else EXIT_INVALID


def _results(arguments: argparse.Namespace, names: list[str]) -> Iterator[Preflight]:
    """One at a time: on a host each takes seconds, and those that are done are worth having when the host goes away."""
    for name in names:
        if _is_on_host(arguments):
            yield _checked_there(name, arguments)
        else:
            yield _checked_here(name, arguments.profiles_dir)


def _passes(result: Preflight, is_strict: bool) -> bool:
    return result.ok and not (is_strict and any(found.severity is not Severity.INFO for found in result.findings))


def _every_name(arguments: argparse.Namespace) -> list[str]:
    found = _listed(arguments)
    if not found.profiles:
        raise OperatorError(f"there are no profiles in {found.directory}", "name a file, or --profiles-dir DIRECTORY")
    return [one.name for one in found.profiles]


def _checked_here(name: str, profiles_dir: Path) -> Preflight:
    try:
        return shape_check(local_profile(name, profiles_dir))
    except OperatorError as error:
        return _refused(name, error.fact, error.remedy, UNCHECKED)


def _checked_there(name: str, arguments: argparse.Namespace) -> Preflight:
    """The host answers a file that it cannot read with an error, which is as much of a finding as any other."""
    try:
        return _ask(arguments, "profiles.check", Preflight, ProfileName(name=name), FORECAST_DEADLINE_S)
    except CallFailed as error:
        if error.error.code != ErrorCode.INVALID_PARAMS:
            raise
        return _refused(name, error.error.message, error.remedy, [])


def _refused(name: str, fact: str, remedy: str, unchecked: list[str]) -> Preflight:
    finding = Finding(id="profile.refused", severity=Severity.ERROR, text=fact, remedy=remedy)
    return Preflight(profile=name, ok=False, findings=[finding], unchecked=unchecked)


def local_profile(name: str, profiles_dir: Path) -> Profile:
    """A profile by name or path on this machine. Raises `OperatorError`."""
    return load_profile(find_profile(name, profiles_dir))


def _directory(arguments: argparse.Namespace) -> ProfileDirectory:
    directory: Path = arguments.profiles_dir
    if not directory.is_dir():
        raise OperatorError(
            f"there is no directory {directory}", "name one with --profiles-dir, or ask a host: --on-host"
        )
    return ProfileDirectory(directory)


def _is_on_host(arguments: argparse.Namespace) -> bool:
    """Only when asked: $VLLM_CONSOLE_TARGET is set all day and must not decide which files are meant."""
    return bool(arguments.on_host or arguments.target is not None)


def _ask(
    arguments: argparse.Namespace,
    method: str,
    result: type[R],
    params: msgspec.Struct = NO_PARAMS,
    deadline_s: float = READ_DEADLINE_S,
) -> R:
    async def ask() -> R:
        async with connected(resolve(arguments.target).path) as client:
            return await client.read(method, result, params, deadline_s=deadline_s)

    return asyncio.run(ask())
