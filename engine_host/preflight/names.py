"""Keys that the installed vLLM does not have, and for those that it once had, what took their place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from engine_host.nearest import nearest
from engine_host.protocol.profiles import Finding

from .findings import error

if TYPE_CHECKING:
    from engine_host.profiles import ValidNames

SPECULATION = "speculative_config"
SCHEDULE = "num_speculative_tokens_per_batch_size"


def unknown_keys(engine: Mapping[str, Any], server: Mapping[str, Any], valid: ValidNames) -> list[Finding]:
    """One finding for each key that the installed vLLM refuses or, worse, would drop."""
    findings = [_unknown("engine", key, valid.engine, engine) for key in engine if key not in valid.engine] + [
        _unknown("server", key, valid.server, engine) for key in server if key not in valid.server
    ]
    for table, keys in valid.nested.items():
        inner = engine.get(table)
        if inner is None:
            continue
        if not isinstance(inner, Mapping):
            findings.append(
                error("names.no_table", f"engine.{table} is {inner!r}, expected a table", f"write: [engine.{table}]")
            )
            continue
        findings += [_unknown(f"engine.{table}", key, keys, engine) for key in inner if key not in keys]
    return findings


def _unknown(where: str, key: str, valid: Any, engine: Mapping[str, Any]) -> Finding:
    if (gone := _GONE.get(key)) is not None:
        fact, remedy = gone
        return error("option.gone", f"{where}.{key}: {fact}", remedy(engine))
    match = nearest(key, valid)
    remedy_text = f'did you mean "{match}"?' if match else "the installed vLLM has no such argument; remove it"
    return error("names.unknown", f"unknown key {where}.{key}", remedy_text)


def schedule_for(engine: Mapping[str, Any]) -> str:
    """The schedule by batch size that does what `disable_by_batch_size` promised."""
    table = engine.get(SPECULATION)
    inner: Mapping[str, Any] = table if isinstance(table, Mapping) else {}
    limit, k = inner.get("disable_by_batch_size"), inner.get("num_speculative_tokens", 5)
    if type(limit) is not int or limit < 2:
        return f"{SCHEDULE} = [[1, 16, {k}], [17, 256, 0]]"
    top = max(limit, engine.get("max_num_seqs") or 256)
    return f"{SCHEDULE} = [[1, {limit - 1}, {k}], [{limit}, {top}, 0]]"


_GONE: Mapping[str, tuple[str, Callable[[Mapping[str, Any]], str]]] = {
    "disable_by_batch_size": (
        "vLLM no longer has it, and while it had it, it did nothing",
        lambda engine: f"to stop drafting at large batches: {schedule_for(engine)}",
    ),
    "ngram_prompt_lookup_max": ("no key of vLLM", lambda _: 'did you mean "prompt_lookup_max"?'),
    "ngram_prompt_lookup_min": ("no key of vLLM", lambda _: 'did you mean "prompt_lookup_min"?'),
    "swap_space": (
        "vLLM no longer swaps sequences",
        lambda engine: f"kv_offloading_size = {engine.get('swap_space')!r} (GiB) keeps KV blocks in CPU memory",
    ),
    "speculative_model": (
        "an argument of older releases",
        lambda engine: f'write: [engine.speculative_config] model = "{engine.get("speculative_model")}"',
    ),
    "num_speculative_tokens": (
        "it stands in [engine.speculative_config]",
        lambda engine: (
            f"write: [engine.speculative_config] num_speculative_tokens = {engine.get('num_speculative_tokens')!r}"
        ),
    ),
    "speculative_max_model_len": (
        "an argument of older releases",
        lambda engine: (
            f"write: [engine.speculative_config] max_model_len = {engine.get('speculative_max_model_len')!r}"
        ),
    ),
    "use_v2_block_manager": ("vLLM has one block manager since 0.7", lambda _: "remove it"),
    "num_scheduler_steps": (
        "multi-step scheduling is gone; asynchronous scheduling took its place",
        lambda _: "remove it; async_scheduling is on by default",
    ),
}
"""Key -> (why it is unknown, what to write): names that stand in older profiles, documents and blog posts."""
