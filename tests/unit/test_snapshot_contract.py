"""What `status --json` prints is a contract: scripts read these keys.

`snapshot_keys.txt` has every key with its type. More may come, in any file of the protocol; what stands there stays.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from engine_host.protocol.snapshot import Snapshot

RECORDED = Path(__file__).with_name("snapshot_keys.txt")


def keys() -> Iterator[str]:
    """One line a key: "Engine.model: null | string"; and one a word of an enumeration."""
    for name, part in msgspec.json.schema(Snapshot)["$defs"].items():
        for key, described in part.get("properties", {}).items():
            need = " (always)" if key in part.get("required", ()) else ""
            yield f"{name}.{key}: {type_of(described)}{need}"
        for word in part.get("enum", ()):
            yield f"{name} has {word!r}"


def type_of(described: dict[str, Any]) -> str:
    if "$ref" in described:
        return str(described["$ref"].rpartition("/")[2])
    if "anyOf" in described:
        return " | ".join(sorted(type_of(one) for one in described["anyOf"]))
    if described["type"] == "array":
        return f"list of {type_of(described['items'])}"
    if "additionalProperties" in described:
        return f"map to {type_of(described['additionalProperties'])}"
    return str(described["type"])


def test_no_key_of_a_snapshot_is_renamed_retyped_or_dropped() -> None:
    missing = [line for line in RECORDED.read_text().splitlines() if line not in set(keys())]
    assert not missing, f"scripts read these: {missing}"
