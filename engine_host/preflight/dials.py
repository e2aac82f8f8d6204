"""`[dials]` against what the engine will take: the scheduler's limits cannot be above what it is started with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine_host.protocol.profiles import Finding

from .findings import error
from .setting import Setting

_BOUNDED_BY = {
    "max_active_seqs": "max_num_seqs",
    "max_scheduled_tokens": "max_num_batched_tokens",
    "speculative_tokens": "num_speculative_tokens",
}
"""Dial -> the engine argument that it can go up to."""


def check_dials(dials: Mapping[str, int], setting: Setting) -> list[Finding]:
    return [finding for name, value in dials.items() if (finding := _above(name, value, setting)) is not None]


def _above(name: str, value: int, setting: Setting) -> Finding | None:
    argument = _BOUNDED_BY[name]
    if name == "speculative_tokens" and setting.method is None:
        return error("dials.no_speculation", f"dials.{name} = {value}, but the profile has no speculation",
                     f"remove dials.{name}, or add [engine.speculative_config]")  # fmt: skip
    highest: Any
    if setting.facts is not None:
        highest = getattr(setting.facts, argument)
    else:
        table = setting.speculation if name == "speculative_tokens" else setting.engine
        highest = table.get(argument)
    if type(highest) is not int or value <= highest:
        return None
    return error(
        "dials.range",
        f"dials.{name} = {value} is above {argument} = {highest}, and a dial cannot go beyond what its engine is "
        "started with",
        f"set dials.{name} = {highest} or less, or raise {argument}",
    )
