"""The start of an engine builds its configuration anyway: what came of it answers the next check of its profile.

So the profile that a host was started with is checked like one that was switched to, without a process. Works in the
engine's worker thread. It only listens: whatever goes wrong here is no fault of the start.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import msgspec

from engine_host.profiles import Profile, ValidNames, check_keys

from .answer_keys import config_key, names_key
from .config import ProbeAnswer, Probed, ProbeNames, probed
from .known_answers import KnownAnswers

log = logging.getLogger(__name__)


class ConfigWitness:
    """Of one start of `profile`."""

    def __init__(self, profile: Profile, known: KnownAnswers) -> None:
        self._profile = profile
        self._known = known
        self._key: str | None = None

    def check_names(self, names: ValidNames) -> None:
        """Before the configuration is built. Raises `OperatorError` for a key that is none of `names`."""
        check_keys(self._profile, names)
        self._key = self._key_now()
        if (key := names_key(self._known.environment)) is not None:
            self._known.keep(key, ProbeNames.of(names))

    def on_config(self, found: Mapping[str, Any]) -> None:
        """After it: `found` is what `config_probe` would have answered, without the names."""
        if self._key is None or self._key_now() != self._key or self._known.get(self._key, Probed) is not None:
            return  # the check before a switch has told already, with all that vLLM warns of only once in a process
        try:
            answer = msgspec.convert(found, ProbeAnswer)
        except msgspec.ValidationError as fault:
            log.warning("a configuration that the checks cannot read: %s", fault)
            return
        self._known.keep(self._key, probed(answer, self._profile.engine))

    def _key_now(self) -> str | None:
        return config_key(self._profile.engine, self._profile.server, self._known.environment)
