"""Who has no API key that vLLM takes: such requests go to it unthrottled, since it will refuse them (401) at no cost.

They would otherwise fill the hold queue, and clients with a key would be refused for them. In doubt a request has a
key: it is then throttled as any other.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from typing import Any

from engine_host.engine.port import Scope

_GUARDED = "/v1/"
"""What every supported vLLM asks a key for; what only some guard is throttled."""


class ApiKeys:
    """Of vLLM's `api_key` argument; none: everybody may ask."""

    def __init__(self, keys: Iterable[str] = ()) -> None:
        self._digests = frozenset(hashlib.sha256(key.encode()).digest() for key in keys if key)

    @classmethod
    def of(cls, server: Mapping[str, Any]) -> ApiKeys:
        """Of a profile's `[server]` table, else of the environment, as vLLM takes them."""
        return cls(server.get("api_key") or [os.environ.get("VLLM_API_KEY", "")])

    def are_missed_by(self, scope: Scope) -> bool:
        """Whether vLLM will refuse `scope` for want of a key."""
        if not self._digests or not scope["path"].startswith(_GUARDED):
            return False
        return not any(name == b"authorization" and _digest(value) in self._digests for name, value in scope["headers"])


def _digest(authorization: bytes) -> bytes:
    """Of the key in an `Authorization` header, read as vLLM reads it."""
    return hashlib.sha256(authorization.decode("latin-1").partition(" ")[2].encode()).digest()
