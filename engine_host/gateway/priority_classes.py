"""Which priority class a request is of: by its API key, by a header, by vLLM's own `priority`."""

from __future__ import annotations

import hashlib

from engine_host.engine.port import Scope
from engine_host.profiles.throttle_table import Throttle

_DIGEST_PREFIX = "sha256:"


class PriorityClasses:
    """As a profile's `[throttle]` table has them; 0 is the rank of the lowest. Capitals in a name count for nothing, a
    name that there is not is as good as none."""

    def __init__(self, table: Throttle) -> None:
        self.names = list(table.classes)
        self._ranks = {name.lower(): rank for rank, name in enumerate(self.names)}
        middle = (len(self.names) - 1) // 2
        self.default = middle if table.default_class is None else self.rank_of(table.default_class, middle)
        self._header = None if table.class_header is None else table.class_header.lower().encode("latin-1")
        # By digest: looking one up tells by its timing nothing that helps to guess a key.
        self._keys = {_digest_of(key): self.rank_of(name, self.default) for key, name in table.api_key_classes.items()}

    def rank_of(self, name: str | None, otherwise: int = 0) -> int:
        """Of a class by its name; `otherwise` where the profile has none of that name."""
        return otherwise if name is None else self._ranks.get(name.lower(), otherwise)

    def rank(self, scope: Scope, priority: int) -> int:
        """`priority` is vLLM's: negative is sooner. The API key wins over the header, the header over `priority`."""
        if self._keys or self._header is not None:
            named: int | None = None
            for name, value in scope["headers"]:
                if self._keys and name in (b"authorization", b"x-api-key"):
                    rank = self._keys.get(hashlib.sha256(_key(name, value)).digest())
                    if rank is not None:
                        return rank
                if name == self._header:
                    named = self._ranks.get(value.decode("latin-1").strip().lower(), named)
            if named is not None:
                return named
        if priority:
            step = 1 if priority < 0 else -1
            return max(0, min(len(self.names) - 1, self.default + step))
        return self.default


def _key(header: bytes, value: bytes) -> bytes:
    if header == b"authorization":
        scheme, _, value = value.partition(b" ")
        return value.strip() if scheme.lower() == b"bearer" else b""
    return value.strip()


def _digest_of(key: str) -> bytes:
    if key.startswith(_DIGEST_PREFIX):
        return bytes.fromhex(key[len(_DIGEST_PREFIX) :])
    return hashlib.sha256(key.encode()).digest()
