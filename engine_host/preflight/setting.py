"""What a rule about options may look at: the profile's words, and what vLLM made of them where it did."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from .config import ConfigFacts
from .names import SPECULATION


@dataclass(frozen=True)
class Setting:
    engine: Mapping[str, Any]
    facts: ConfigFacts | None = None
    """None when the configuration was not built."""
    speculation_names: Collection[str] | None = None
    """Keys of `[engine.speculative_config]` that the installed vLLM has."""
    machine_bytes: int | None = None
    """All memory of the machine."""
    environment: Mapping[str, str] | None = None

    @property
    def speculation(self) -> Mapping[str, Any]:
        table = self.engine.get(SPECULATION)
        return table if isinstance(table, Mapping) else {}

    @property
    def method(self) -> str | None:
        if self.facts is not None and self.facts.speculation_method:
            return self.facts.speculation_method
        if not self.speculation:
            return None
        # As SpeculativeConfig infers it before it has seen the draft model.
        return self.speculation.get("method") or (
            "ngram" if self.speculation.get("model") == "ngram" else "draft_model"
        )

    @property
    def is_cpu(self) -> bool:
        return self.facts is not None and self.facts.device == "cpu"

    def env(self, name: str) -> str | None:
        return (os.environ if self.environment is None else self.environment).get(name) or None
