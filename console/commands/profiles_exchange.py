"""`profiles import` and `export`: between profiles and what `vllm serve` takes. Notices go to standard error."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from console import format as fmt
from console.commands.output import write_json
from console.commands.profiles import local_profile
from engine_host.profiles import Profile, build_profile
from engine_host.profiles.exporter import to_command_line, to_yaml
from engine_host.profiles.imported import Imported
from engine_host.profiles.importer import import_file, import_text, import_words
from engine_host.protocol.errors import EXIT_DONE, EXIT_FAILED, OperatorError


def import_(arguments: argparse.Namespace) -> int:
    found = _read(arguments.source)
    profile = build_profile(found.content(), arguments.output or Path("imported.toml"))
    if arguments.json:
        answer = {
            "profile": found.content(),
            "digest": profile.digest,
            "notices": found.notices,
            "path": None if arguments.output is None else str(arguments.output),
        }
        if arguments.output is not None:
            _write(found.toml(), arguments.output, arguments.force, profile)
        write_json(msgspec.json.encode(answer))
        return EXIT_DONE
    for notice in found.notices:
        print(f"vllm-console: {fmt.clean(notice)}", file=sys.stderr)
    _write(found.toml(), arguments.output, arguments.force, profile)
    if arguments.output is not None:
        print(f"wrote {arguments.output} ({profile.digest}); check it with: vllm-console profiles check "
              f"{arguments.output}", file=sys.stderr)  # fmt: skip
    return EXIT_DONE


def export(arguments: argparse.Namespace) -> int:
    profile = local_profile(arguments.name, arguments.profiles_dir)
    text = to_yaml(profile) if arguments.format == "yaml" else to_command_line(profile)
    if arguments.json:
        if arguments.output is not None:
            _write(text, arguments.output, arguments.force, profile)
        path = None if arguments.output is None else str(arguments.output)
        answer = {"name": profile.name, "digest": profile.digest, "format": arguments.format, "text": text}
        write_json(msgspec.json.encode({**answer, "path": path}))
    else:
        _write(text, arguments.output, arguments.force, profile)
    return EXIT_DONE


def _read(source: Sequence[str]) -> Imported:
    if len(source) > 1:
        return import_words(source)
    (one,) = source
    if one == "-":
        return import_text(sys.stdin.read())
    if any(mark.isspace() for mark in one) and not Path(one).exists():
        return import_text(one)
    return import_file(Path(one).expanduser())


def _write(text: str, output: Path | None, may_replace: bool, profile: Profile) -> None:
    """To standard output, or to a file that is complete or not there at all; with a secret in it, its owner's alone."""
    if output is None:
        sys.stdout.write(text)
        return
    if output.exists() and not may_replace:
        raise OperatorError(f"{output} exists", "give another name, or replace it with --force")
    mode = 0o600 if profile.holds_secrets else 0o666
    partial = output.with_name(f".{output.name}.part")
    try:
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "w", encoding="utf-8") as file:
            file.write(text)
        partial.replace(output)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise OperatorError(
            f"{output} cannot be written: {error.strerror}", "name a place with -o", exit_code=EXIT_FAILED
        ) from None
