"""Writes `engine_host/profiles/vllm_arguments.json` from the installed vLLM: the options of `vllm serve`, their kinds.

A laptop without vLLM needs this to read a `vllm serve` command line, where only the parser knows which options take
a value, and to write one. Run it after a change of the pinned vLLM; a test fails while the file is not current.

    python tools/vllm_arguments.py
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

TARGET = Path(__file__).resolve().parents[1] / "engine_host" / "profiles" / "vllm_arguments.json"

_KINDS = {
    "int": "int",
    "human_readable_int": "int",
    "human_readable_int_or_auto": "int",
    "float": "float",
    "str": "text",
    "loads": "json",
    "_parse_type": "json",
    "parse_dataclass": "json",
    "union_dict_and_str": "text_or_json",
}
"""vLLM's argparse types -> ours. Whatever is not listed reads a text."""


def described() -> str:
    """The file's content for the vLLM installed here."""
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    from vllm.config import SpeculativeConfig
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.entrypoints.launchers import cli_args
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    from engine_host.engine.vllm.releases import installed_version

    engine = {field.name for field in fields(AsyncEngineArgs) if field.init}
    server = {field.name for field in fields(cli_args.FrontendArgs) if field.init}
    lines = []
    for action in cli_args.make_arg_parser(FlexibleArgumentParser())._actions:
        if not action.option_strings or action.dest == "help":
            continue
        table = "engine" if action.dest in engine else "server" if action.dest in server else None
        lines.append(f"    {json.dumps(action.dest)}: {json.dumps(_described(action, table))}")
    nested = [
        f"      {json.dumps(field.name)}: {json.dumps(_kind_of_hint(field.type))}"
        for field in fields(SpeculativeConfig)
        if field.init and not field.name.startswith("_")
    ]
    return (
        f'{{\n  "vllm_version": {json.dumps(installed_version())},\n'
        '  "arguments": {\n' + ",\n".join(sorted(lines)) + "\n  },\n"
        '  "nested": {\n    "speculative_config": {\n' + ",\n".join(sorted(nested)) + "\n    }\n  }\n}\n"
    )


def _described(action: argparse.Action, table: str | None) -> dict[str, Any]:
    kind, is_optional = _kind_of_parser(action.type)
    if kind == "text" and isinstance(action.default, int) and not isinstance(action.default, bool):
        kind = "int"  # an enumeration of numbers: optimization_level
    match type(action).__name__, action.nargs:
        case (("BooleanOptionalAction" | "_StoreTrueAction"), _):
            kind, takes = "flag", "none"
        case "_AppendAction", _:
            takes = "append"
        case _, "+":
            takes = "many"
        case _, "?":
            takes = "maybe"
        case _:
            takes = "one"
    described: dict[str, Any] = {"table": table, "flags": list(action.option_strings), "kind": kind, "takes": takes}
    if is_optional:
        described["optional"] = True
    return described


def _kind_of_parser(parse: Any) -> tuple[str, bool]:
    """The kind, and whether "None" on the command line means not set: vLLM wraps the type's parser for that."""
    is_optional = False
    while getattr(parse, "__name__", "") == "_optional_type":
        is_optional = True
        inner = dict(zip(parse.__code__.co_freevars, parse.__closure__, strict=True))
        parse = (inner.get("return_type") or inner["parse_type"]).cell_contents
    return _KINDS.get(getattr(parse, "__name__", "str"), "text"), is_optional


def _kind_of_hint(hint: Any) -> str:
    kinds = {int: "int", float: "float", bool: "flag", str: "text"}
    for candidate in (hint, *get_args(hint)):
        if candidate in kinds:
            return kinds[candidate]
    literals = [value for part in (hint, *get_args(hint)) for value in get_args(part)]
    return "text" if any(isinstance(value, str) for value in literals) else "json"


def main() -> int:
    content = described()
    if "--check" in sys.argv[1:]:
        is_current = TARGET.exists() and TARGET.read_text(encoding="utf-8") == content
        print(f"{TARGET.name} is {'current' if is_current else 'out of date; run: python tools/vllm_arguments.py'}")
        return 0 if is_current else 1
    TARGET.write_text(content, encoding="utf-8")
    print(TARGET)
    return 0


if __name__ == "__main__":
    sys.exit(main())
