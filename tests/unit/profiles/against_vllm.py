"""Asks the installed vLLM what it makes of our files; prints JSON. A program of its own, as vLLM is heavy.

`python -m tests.unit.profiles.against_vllm FILE...`: for each profile, why it is refused, and every value that vLLM's
own parser reads differently from an export of it.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")


def parsed(words: list[str]) -> Any:
    from vllm.entrypoints.launchers import cli_args
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = cli_args.make_arg_parser(FlexibleArgumentParser())
    return parser.parse_args(words)


def differences(profile: Any, namespace: Any) -> list[str]:
    found = []
    for name, value in {**profile.engine, **profile.server}.items():
        read = namespace.model_tag if name == "model" else getattr(namespace, name)
        if hasattr(read, "__dataclass_fields__"):
            read = {key: getattr(read, key) for key in value}
        if read != value:
            found.append(f"{name}: {value!r} is read as {read!r}")
    return found


def main() -> None:
    from engine_host.engine.vllm.arguments import argument_names
    from engine_host.profiles import check_keys, load_profile
    from engine_host.profiles.exporter import to_command_line, to_yaml
    from engine_host.protocol.errors import OperatorError

    names = argument_names()
    results = {}
    for file in sys.argv[1:]:
        profile = load_profile(Path(file))
        refused = None
        try:
            check_keys(profile, names)
        except OperatorError as error:
            refused = str(error)
        # A shell takes a backslash at a line's end away; Python's splitter keeps the line break as a word.
        words = shlex.split(to_command_line(profile).replace("\\\n", " "), comments=True)[2:]
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as config:
            config.write(to_yaml(profile))
            config.flush()
            from_yaml = parsed([profile.model, "--config", config.name])
        results[file] = {
            "refused": refused,
            "command": differences(profile, parsed(words)),
            "yaml": differences(profile, from_yaml),
        }
    print(json.dumps(results))


if __name__ == "__main__":
    main()
