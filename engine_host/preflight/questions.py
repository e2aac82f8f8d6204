"""The questions that only another process can answer: what vLLM makes of a profile, and whether tokenizers agree.

Each is asked when the answer is not known from earlier (`known_answers`), and what lasts of the answer is kept.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import partial
from typing import Any

import msgspec

from engine_host.profiles import ValidNames

from .answer_keys import config_key, names_key, tokenizers_key
from .child import ChildError, ask_child
from .config import Probed, ProbeNames, probe_config
from .known_answers import KnownAnswers
from .off_loop import off_loop
from .tokenizer_process import Answer, Request
from .tokenizers import DRAFT_BROKEN

_TOKENIZER_PROCESS = (sys.executable, "-m", "engine_host.preflight.tokenizer_process")


class Questions:
    """`deadline_s`: for each."""

    def __init__(self, known: KnownAnswers, deadline_s: float) -> None:
        self._known = known
        self._deadline_s = deadline_s
        self._names: ProbeNames | None = None

    async def names(self) -> ValidNames | None:
        """What the installed vLLM takes, when it is known: it comes with every configuration that is asked for."""
        if self._names is None:
            self._names = self._known.get(await off_loop(names_key, self._known.environment), ProbeNames)
        return self._names.to_valid() if self._names is not None else None

    async def configuration(self, engine: Mapping[str, Any], server: Mapping[str, Any]) -> Probed:
        """Its `names` are left out: see there. Only a configuration that was built is kept: a refusal may be about a
        Hub or a device that was away."""

        async def ask() -> Probed:
            environment = self._known.environment
            probed = await probe_config(engine, server, deadline_s=self._deadline_s, environment=environment)
            await self._learn(probed.answer.names)
            return msgspec.structs.replace(probed, answer=msgspec.structs.replace(probed.answer, names=None))

        return await self._known.ask_once(
            partial(config_key, engine, server, self._known.environment),
            Probed,
            ask,
            lasts=lambda probed: probed.answer.facts is not None,
        )

    async def _learn(self, names: ProbeNames | None) -> None:
        self._names = names or self._names
        if names is not None and (key := await off_loop(names_key, self._known.environment)) is not None:
            await off_loop(self._known.keep, key, names)

    async def tokenizers(self, request: Request) -> Answer:
        async def ask() -> Answer:
            try:
                encoded = msgspec.json.encode(request)
                ended = await ask_child(_TOKENIZER_PROCESS, encoded, self._deadline_s, self._known.environment)
                return msgspec.json.decode(ended.output, type=Answer)
            except (ChildError, TimeoutError, msgspec.MsgspecError) as fault:
                return Answer(unchecked=[f"tokenizers: {str(fault) or 'not read in time'}"])

        return await self._known.ask_once(
            partial(tokenizers_key, request, self._known.environment),
            Answer,
            ask,
            # A file that was found broken may have been read badly; that there is none is seen without reading.
            lasts=lambda answer: not answer.unchecked and DRAFT_BROKEN not in {one.id for one in answer.unreadable},
        )
