"""From a profile to what `vllm serve` takes: a command line, or YAML for `--config`.

What only engine-host knows (`[switch]`) goes into comments that the importer reads again, so that a round trip loses
nothing. YAML gets dashed keys, since vLLM drops a `false` under a key with underscores.
"""

from __future__ import annotations

import json
import shlex
from typing import Any

import msgspec
import yaml

from engine_host.profiles.arguments import Argument, catalogue, is_idle
from engine_host.profiles.imported import OWN_COMMENT
from engine_host.profiles.profile import Profile
from engine_host.profiles.shape import Switch, leaves
from engine_host.protocol.errors import OperatorError


def to_command_line(profile: Profile) -> str:
    """Lines of a shell script. Raises `OperatorError` for a value that no command line can carry."""
    if profile.model.startswith("-"):
        raise OperatorError(f"a model called {profile.model!r} cannot stand on a command line", "rename its directory")
    words = [f"vllm serve {shlex.quote(profile.model)}"]
    for table in (profile.engine, profile.server):
        for name, value in table.items():
            if (table is profile.engine and name == "model") or is_idle(name, value):
                continue
            words += [shlex.join(option) for option in _options(name, value)]
    return "".join(f"{line}\n" for line in _own_comments(profile)) + " \\\n  ".join(words) + "\n"


def to_yaml(profile: Profile) -> str:
    """A file for `vllm serve --config`. Raises `OperatorError` for a value that it cannot carry."""
    content = {
        name.replace("_", "-"): _yaml_value(name, value)
        for table in (profile.engine, profile.server)
        for name, value in table.items()
        if not is_idle(name, value)
    }
    dumped = yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=120)
    return "".join(f"{line}\n" for line in _own_comments(profile)) + dumped


def _own_comments(profile: Profile) -> list[str]:
    """One for each value of ours that is not its default."""
    tables = profile.effective()
    own = leaves({name: table for name, table in tables.items() if name not in ("engine", "server")})
    defaults = leaves({"switch": msgspec.to_builtins(Switch())})
    return [f"{OWN_COMMENT}{key} = {json.dumps(value)}" for key, value in own.items() if value != defaults.get(key)]


def _options(name: str, value: Any) -> list[list[str]]:
    argument = catalogue().by_name.get(name)
    flag = argument.flag if argument else "--" + name.replace("_", "-")
    if isinstance(value, bool):
        if value or argument is None or argument.off_flag is None:
            return [[flag]] if value else [[f"--no-{flag[2:]}"]]
        return [[argument.off_flag]]
    if argument is not None and argument.takes == "append":
        return [_option(flag, _text(item)) for item in value]
    if argument is not None and argument.takes == "many":
        items = [_text(item) for item in value]
        if not items or any(item.startswith("-") for item in items[1:]) or (len(items) > 1 and items[0][:1] == "-"):
            raise OperatorError(
                f"{name} = {value!r} cannot stand on a command line", "export it as YAML: --format yaml"
            )
        return [[flag, *items]] if len(items) > 1 else [_option(flag, items[0])]
    return [_option(flag, _text(value))]


def _option(flag: str, text: str) -> list[str]:
    # Apart where it can be, for readers; joined where it would be taken for another option.
    return [f"{flag}={text}"] if text.startswith("-") or not text else [flag, text]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _yaml_value(name: str, value: Any) -> Any:
    """In the form that vLLM turns into the right words: it writes out lists item by item and mappings as JSON."""
    argument: Argument | None = catalogue().by_name.get(name)
    if isinstance(value, list) and argument is not None:
        return (
            [_text(item) if isinstance(item, dict | list) else item for item in value]
            if argument.is_list
            else _text(value)
        )
    return value
