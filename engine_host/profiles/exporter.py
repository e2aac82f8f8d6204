"""From a profile to what `vllm serve` takes: a command line, or YAML for `--config`.

What only engine-host knows (`[switch]`, `[throttle]`) goes into comments that the importer reads again, so that a round
trip loses nothing but secrets. YAML gets dashed keys, since vLLM drops a `false` under a key with underscores.
"""

from __future__ import annotations

import json
import re
import shlex
from typing import Any

import msgspec
import yaml

from engine_host.profiles.arguments import catalogue, is_idle
from engine_host.profiles.imported import OWN_COMMENT
from engine_host.profiles.profile import Profile
from engine_host.profiles.shape import SECRETS, Switch, leaves
from engine_host.profiles.throttle_table import Throttle
from engine_host.protocol.errors import OperatorError

_NEGATIVE = re.compile(r"-\d+(\.\d+)?")


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
    defaults = leaves({"switch": msgspec.to_builtins(Switch()), "throttle": msgspec.to_builtins(Throttle())})
    meant = {key: value for key, value in own.items() if value != defaults.get(key)}
    return [
        f"{OWN_COMMENT}{key} = {json.dumps(value)}" if key not in SECRETS else f"# {key} is left out: it is secret"
        for key, value in meant.items()
    ]


def _options(name: str, value: Any) -> list[list[str]]:
    argument = catalogue().by_name.get(name)
    flag = argument.flag if argument else "--" + name.replace("_", "-")
    if isinstance(value, bool):
        off = argument.off_flag if argument else None
        return [[flag]] if value else [[off or f"--no-{flag[2:]}"]]
    if argument is not None and argument.takes == "append":
        return [_option(flag, _text(item)) for item in value]
    if argument is not None and argument.takes == "many":
        items = [_text(item) for item in value]
        if len(items) != 1:
            _refuse_unspeakable(name, items)
            return [[flag, *items]]
        return [_option(flag, items[0])]
    return [_option(flag, _text(value))]


def _option(flag: str, text: str) -> list[str]:
    # Apart where it can be, for readers; joined where it would be taken for another option.
    return [f"{flag}={text}"] if text.startswith("-") or not text else [flag, text]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _yaml_value(name: str, value: Any) -> Any:
    """In the form that vLLM turns into the right words: it writes out lists item by item and mappings as JSON."""
    argument = catalogue().by_name.get(name)
    if isinstance(value, str):
        _refuse_unspeakable(name, [value])
    if not isinstance(value, list) or argument is None:
        return value
    if not argument.is_list:
        return _text(value)
    items = [_text(item) if isinstance(item, str | dict | list) else item for item in value]
    _refuse_unspeakable(name, [str(item) for item in items])
    if argument.takes == "append" and len(items) > 1:
        raise OperatorError(
            f"vLLM's YAML cannot hold more than one {name}: {value!r}", "export a command line: --format command"
        )
    return items


def _refuse_unspeakable(name: str, items: list[str]) -> None:
    """vLLM takes a word with a dash in front for an option, and refuses an option of a list without words."""
    if not items or any(item.startswith("-") and not _NEGATIVE.fullmatch(item) for item in items):
        raise OperatorError(
            f"{name} = {items!r} cannot be said to `vllm serve` in this form",
            "only a profile can say it: engine-host serve PROFILE" if len(items) != 1 else "try the other --format",
        )
