"""Reads vLLM's `--config` YAML in every form seen in the field.

Dashes or underscores, `no-` in front, JSON in a text or a mapping, dotted keys. What vLLM itself would have misread
(`false` under an underscored key, `null`) is read as it was meant, and said.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from engine_host.profiles.arguments import catalogue
from engine_host.profiles.imported import MORE_THAN_ONCE, OWN_COMMENT, Imported
from engine_host.profiles.older_names import ENVIRONMENT, OLDER
from engine_host.protocol.errors import OperatorError

_SOURCE = "YAML"


def read_yaml(text: str, into: Imported) -> None:
    """Raises `OperatorError`."""
    for line in text.splitlines():
        if line.startswith(OWN_COMMENT):
            into.put_own(line.removeprefix(OWN_COMMENT))
    for key, value in _mapping(text, into).items():
        _put(str(key), value, into)


def _mapping(text: str, into: Imported) -> Mapping[Any, Any]:
    loader = None
    try:
        loader = yaml.SafeLoader(text)
        root = loader.get_single_node()
        for key in _repeated(root):
            into.notice(f"{key}: {MORE_THAN_ONCE}")
        content = loader.construct_document(root) if root is not None else None
    except (yaml.YAMLError, ValueError) as error:
        raise OperatorError(f"this is not YAML: {' '.join(str(error).split())}", "mend that line") from None
    except RecursionError:
        raise OperatorError("this YAML is nested too deeply", "give vLLM's --config file") from None
    finally:
        if loader is not None:
            loader.dispose()
    if not isinstance(content, Mapping):
        raise OperatorError(
            "this YAML has no keys at its top", "write one argument a line, for example: max-model-len: 8192"
        )
    return content


def _repeated(root: yaml.Node | None) -> Iterator[str]:
    """Keys that one mapping has twice with different values: a Python mapping would keep the last without a word."""
    left, seen = [("", root)], set[int]()
    while left:
        prefix, node = left.pop()
        if node is None or id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            left += [(prefix, item) for item in node.value]
        if not isinstance(node, yaml.MappingNode):
            continue
        given: dict[str, Any] = {}
        for key_node, value in node.value:
            if not isinstance(key_node, yaml.ScalarNode) or key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = f"{prefix}{key_node.value}"
            earlier = given.setdefault(key, value)
            if earlier is not value and (not isinstance(value, yaml.ScalarNode) or earlier.value != value.value):
                yield key
            given[key] = value
            left.append((f"{key}.", value))


def _put(key: str, value: Any, into: Imported) -> None:
    plain = key.strip().lstrip("-")
    if translated := ENVIRONMENT.get(plain):
        into.notice(f"{key}: {translated[1]}")
        into.put(key, translated[0], value, _SOURCE)
        return
    head, dot, inner = plain.partition(".")
    name = head.replace("-", "_")
    known = catalogue()
    if name == "model_tag":
        name = "model"
    off = name.removeprefix("no_")
    if off != name and name not in known.by_name and (off in known.by_name or off in OLDER) and not dot:
        if value is True:
            into.put(key, off, False, _SOURCE)
        else:
            into.notice(f"{key}: only `{key}: true` means something; left out")
        return
    argument = known.by_name.get(name)
    if value is False and argument is not None and argument.kind == "flag" and "_" in head:
        into.notice(f"{key}: vLLM drops a false under a key with underscores; read as false all the same")
    if isinstance(value, list) and not value:
        into.notice(f"{key}: an empty list, which vLLM ignores; left out")
        return
    into.put(key, f"{name}{dot}{inner}", value, _SOURCE)
