"""`[throttle]` against the engine it stands before, and the clients that wait at it."""

from __future__ import annotations

from engine_host.profiles.throttle_table import Throttle
from engine_host.profiles.windows import check_overlap
from engine_host.protocol.profiles import Finding

from .findings import info, warning
from .setting import Setting

CLIENTS_WAIT_S = 600.0
"""What OpenAI's own clients wait for an answer, unless they are told otherwise."""


def check_throttle(table: Throttle, setting: Setting, longest_tokens: int | None = None) -> list[Finding]:
    """`longest_tokens`: of one request, as far as the KV cache is known."""
    found = _about_overlap(table, setting, longest_tokens)
    if table.hold_deadline_s > CLIENTS_WAIT_S:
        found.append(
            info(
                "throttle.hold_deadline",
                f"throttle.hold_deadline_s = {table.hold_deadline_s:g}: OpenAI's clients hang up after "
                f"{CLIENTS_WAIT_S:g} s, and then wait for nothing",
                f"give at most {CLIENTS_WAIT_S:g}, or a longer timeout to the clients",
            )
        )
    auto = table.auto
    if auto.mode != "off" and "speculative_tokens" in auto.dials and setting.method is None:
        found.append(
            warning(
                "throttle.no_speculation",
                "throttle.auto.dials names speculative_tokens, but the profile has no speculation to turn down",
                "remove it from throttle.auto.dials, or add [engine.speculative_config]",
            )
        )
    return found


def _about_overlap(table: Throttle, setting: Setting, longest_tokens: int | None) -> list[Finding]:
    context = setting.facts.max_model_len if setting.facts is not None else setting.engine.get("max_model_len")
    if isinstance(context, int) and context > 0:
        found = check_overlap(table, context, f"max_model_len = {context}")
        if found or longest_tokens is None or not 0 < longest_tokens < context:
            return found
        # What the cache will hold is a forecast, and refuses nothing.
        told = check_overlap(table, longest_tokens, f"a KV cache for {longest_tokens} tokens of one request")
        return [warning(one.id, one.text, one.remedy) for one in told]
    return []
