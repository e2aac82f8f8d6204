"""What an import gathers: arguments by today's names, in a profile's tables, with a notice for each translation.

Both readers, of command lines and of YAML, put what they find in here under the name it was written with. Nothing is
dropped or renamed without a notice; what vLLM of this release does not know is kept, so that the check refuses it by
name instead of the deployment losing it.
"""

from __future__ import annotations

import json
import math
import re
import tomllib
from dataclasses import dataclass, field
from typing import Any

from engine_host.nearest import nearest
from engine_host.profiles.arguments import Argument, catalogue
from engine_host.profiles.older_names import OLDER, OLDER_NESTED
from engine_host.profiles.shape import SCHEMA, SECRETS, TABLES
from engine_host.profiles.toml_text import as_toml
from engine_host.profiles.value_texts import json_or_number, scalar
from engine_host.protocol.errors import OperatorError

OWN_COMMENT = "# vllm-console: "
"""Begins a comment that carries what vLLM has no argument for: `# vllm-console: switch.drain_timeout_s = 5.0`."""

MORE_THAN_ONCE = "given more than once; the last one counts"

TRUE, FALSE = frozenset({"true", "yes", "on", "1"}), frozenset({"false", "no", "off", "0"})


@dataclass
class Imported:
    tables: dict[str, dict[str, Any]] = field(default_factory=lambda: {name: {} for name in TABLES})
    notices: list[str] = field(default_factory=list)
    _given: dict[str, str] = field(default_factory=dict)
    """Argument -> the source that gave it last."""
    _apart: set[str] = field(default_factory=set)
    """Dotted keys of mappings that came by a name of their own: an older one, or a dotted option."""
    _swap_space: tuple[str, float] | None = None
    """As it was written, and the GiB that it asked for."""

    def content(self) -> dict[str, Any]:
        """What a profile file of this would hold."""
        return {"schema": SCHEMA, **{name: table for name, table in self.tables.items() if table}}

    def toml(self) -> str:
        """The profile as a file, the notices as comments above it."""
        said = "".join(f"# {_one_line(notice)}\n" for notice in self.notices)
        return said + as_toml(self.content())

    def notice(self, text: str) -> None:
        if text not in self.notices:
            self.notices.append(text)

    def put(self, written: str, name: str, value: Any, source: str) -> None:
        """`value` of the argument `name` (underscores, dotted for a key of a mapping), called `written` in `source`.

        Texts are read as the argument's kind wants them. Raises `OperatorError` for one that cannot be.
        """
        head, *inner = name.split(".")
        if head in OLDER:
            self._put_older(written, head, value, source)
            return
        argument = catalogue().by_name.get(head)
        if value is None or (argument and argument.optional and value in ("", "None", "null") and not inner):
            self.notice(f"{written}: not set ({json.dumps(value)}); left out")
        elif argument is None:
            self._put_unknown(written, head, inner, value)
        elif argument.table is None:
            self.notice(f"{written}: concerns `vllm serve` itself and not the engine; left out")
        elif inner:
            self._put_inner(written, argument.table, head, inner, value, source)
        elif (typed := self._typed(written, value, argument)) is not None:
            self._put_known(written, argument, head, typed, source)

    def finish(self) -> None:
        """What can be said only once everything has been put."""
        engine = self.tables["engine"]
        if self._swap_space is None or engine.get("kv_offloading_size") != self._swap_space[1]:
            return  # or today's own name came later, and counts
        written, per_gpu = self._swap_space
        sizes = [engine.get(f"{way}_parallel_size", 1) for way in ("tensor", "pipeline")]
        gpus = math.prod(size for size in sizes if type(size) is int and size > 0)
        if gpus > 1:
            engine["kv_offloading_size"] = per_gpu * gpus
            self.notice(
                f"{written}: {per_gpu:g} GiB for each GPU are kv_offloading_size = {per_gpu * gpus:g} GiB over the "
                f"{gpus} GPUs of this engine"
            )

    def put_own(self, comment: str) -> None:
        """A line that an export wrote for itself: `switch.drain_timeout_s = 5.0`. Raises `OperatorError`."""
        key, _, value = comment.partition("=")
        table, *inner = key.strip().split(".")
        try:
            parsed = tomllib.loads(f"v = {value}")["v"]
        except tomllib.TOMLDecodeError:
            parsed = None
        if table not in TABLES or not inner or parsed is None:
            raise OperatorError(
                f"{OWN_COMMENT}{comment}: expected a key and a value",
                f"write it as {OWN_COMMENT}switch.drain_timeout_s = 5.0, or remove the line",
            )
        _nest(self.tables[table], inner, parsed)

    def _put_known(self, written: str, argument: Argument, name: str, value: Any, source: str) -> None:
        assert argument.table is not None
        table = self.tables[argument.table]
        if argument.takes == "append" and self._given.get(name) == source:
            table[name] = [*table[name], *value]
            return
        if self._given.get(name) == source and table.get(name) != value:
            self.notice(f"{written}: {MORE_THAN_ONCE}")
        replaced, self._given[name] = self._given.get(name), source
        if isinstance(value, dict):
            value = self._merged(written, argument.table, name, self._without_older(written, name, value), replaced)
        if f"{argument.table}.{name}" in SECRETS:
            self.notice(f"{written}: the profile holds a secret now; keep its file to yourself (chmod 600)")
        table[name] = value

    def _put_older(self, written: str, name: str, value: Any, source: str) -> None:
        older = OLDER[name]
        if value is None or value is False:
            self.notice(f"{written}: not set; left out")
            return
        if name == "speculative_model" and value == "[ngram]":
            self.notice(f'{written}: is speculative_config.method = "ngram" today')
            self.put(written, "speculative_config.method", "ngram", source)
            return
        if older.target is None or (older.values and older.values.get(str(value), "") is None):
            self.notice(f"{written}: {older.note}" if older.target is None else f"{written}: 0 is none; left out")
            return
        self.notice(f"{written}: {older.note}")
        self.put(written, older.target, "ray" if name == "worker_use_ray" else value, source)
        if name == "swap_space":
            self._swap_space = written, self.tables["engine"].get("kv_offloading_size", 0.0)

    def _put_unknown(self, written: str, name: str, inner: list[str], value: Any) -> None:
        known = catalogue()
        match = nearest(name, known.by_name)
        hint = f'; did you mean "{match}"?' if match else ""
        self.notice(
            f"{written}: vLLM {known.vllm_version} has no such argument{hint} Kept as engine.{name}: check the profile"
            if hint
            else f"{written}: vLLM {known.vllm_version} has no such argument; kept as engine.{name}: check the profile"
        )
        guessed = [_guessed(item) for item in value] if isinstance(value, list) else _guessed(value)
        _nest(self.tables["engine"], [name, *inner], guessed)

    def _merged(
        self, written: str, table: str, name: str, value: dict[str, Any], replaced: str | None
    ) -> dict[str, Any]:
        """A whole mapping takes the place of one that the source `replaced` gave, not of what had names of its own."""
        before = self.tables[table].get(name)
        kept = {}
        for key, item in before.items() if isinstance(before, dict) else ():
            where = f"{name}.{key}"
            if where not in self._apart:
                if key not in value and replaced is not None:
                    self.notice(f"{written}: is a whole mapping, so that the {where} of the {replaced} is left out")
            elif key not in value:
                kept[key] = item
            else:
                if value[key] != item:
                    self.notice(f"{where}: {MORE_THAN_ONCE}")
                self._apart.discard(where)
        return {**kept, **value}

    def _put_inner(self, written: str, table: str, name: str, inner: list[str], value: Any, source: str) -> None:
        """`--speculative-config.num_speculative_tokens 5`"""
        known = self.tables[table].get(name)
        if known is not None and not isinstance(known, dict):
            self.notice(f"{written}: takes the place of {name} = {known!r}")
            del self.tables[table][name]
        last = inner[-1]
        if last.endswith("+"):
            inner = [*inner[:-1], last[:-1]]
            value = value.split(",") if isinstance(value, str) else value
        if len(inner) == 1:
            inner = [self._underscored(written, name, inner[0])]
        if len(inner) == 1 and (older := OLDER_NESTED.get(name, {}).get(inner[0])):
            target, note = older
            self.notice(f"{written}: {note}")
            if target is None:
                return
            inner = [target]
        kind = catalogue().nested.get(name, {}).get(inner[0]) if len(inner) == 1 else None
        read = json_or_number(value) if kind != "text" and isinstance(value, str) else value
        first = inner[0]
        if isinstance(known, dict) and len(inner) == 1 and first in known and known[first] != read:
            self.notice(f"{name}.{first}: {MORE_THAN_ONCE}")
        _nest(self.tables[table], [name, *inner], read)
        self._apart.add(f"{name}.{first}")

    def _without_older(self, written: str, name: str, mapping: dict[str, Any]) -> dict[str, Any]:
        renamed: dict[str, Any] = {}
        for given, value in mapping.items():
            key = self._underscored(written, name, given)
            target, note = OLDER_NESTED.get(name, {}).get(key, (key, ""))
            if note:
                self.notice(f"{written}: {key} {note}")
            if value is None:
                self.notice(f"{written}: {key} is not set (null); left out")
            elif target is not None:
                if renamed.get(target, value) != value:
                    self.notice(f"{written}: {target}: {MORE_THAN_ONCE}")
                renamed[target] = value
        return renamed

    def _underscored(self, written: str, name: str, key: str) -> str:
        """A key of a mapping as vLLM calls it; keys that it does not know may be anything, dashes and all."""
        plain = key.replace("-", "_") if isinstance(key, str) else key
        if plain == key or not (plain in catalogue().nested.get(name, {}) or plain in OLDER_NESTED.get(name, {})):
            return key
        self.notice(f"{written}: {key} is called {plain} inside {name}")
        return plain

    def _typed(self, written: str, value: Any, argument: Argument) -> Any:
        """`value` as the argument's kind; `None` when it was left out with a notice."""
        if argument.kind == "flag":
            return self._flag(written, value)
        if argument.takes == "maybe" and value is True:
            return True
        if isinstance(value, bool):
            self.notice(f"{written}: {str(value).lower()} is no value for it; left out (YAML reads yes and no as that)")
            return None
        if argument.is_list:
            items = value if isinstance(value, list) else [value]
            return [scalar(written, item, argument.kind) for item in items]
        return scalar(written, value, argument.kind)

    def _flag(self, written: str, value: Any) -> bool | None:
        if isinstance(value, bool):
            return value
        word = str(value).lower()
        if word in TRUE | FALSE:
            self.notice(f'{written}: takes no value; "{value}" read as {str(word in TRUE).lower()}')
            return word in TRUE
        raise OperatorError(f"{written}: {value!r} is neither true nor false", f"write {written} without a value")


def _guessed(value: Any) -> Any:
    """The value of an argument of no known kind."""
    if not isinstance(value, str):
        return value
    return json_or_number(value)


def _nest(table: dict[str, Any], keys: list[str], value: Any) -> None:
    for key in keys[:-1]:
        inner = table.get(key)
        if not isinstance(inner, dict):
            inner = table[key] = {}
        table = inner
    table[keys[-1]] = value


def _one_line(text: str) -> str:
    return re.sub(r"[^\x20-\x7e\x80-\U0010ffff]+", " ", text)
