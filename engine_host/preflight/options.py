"""Options that vLLM accepts and that do not do what they say: dead, overruled, or contradictory.

What vLLM refuses is told by its own words (`config`); the rules here are about what it swallows. Each was read in the
code of 0.26 and 0.32. Where the configuration could not be built, the rules work on what the profile says.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from engine_host.protocol.profiles import Finding

from .config import ConfigFacts
from .findings import amount, error, info, warning
from .names import SCHEDULE, SPECULATION, schedule_for

USUAL_K = range(4, 9)
"""Draft lengths that pay in most reports: the first position is accepted over 70 %, the seventh under 10 %."""

CPU_BLOCK_MULTIPLE = 32
CPU_KV_SPACE = "VLLM_CPU_KVCACHE_SPACE"

_ASYNC_METHODS = frozenset(
    {"eagle", "eagle3", "mtp", "draft_model", "ngram_gpu", "dspark", "dflash", "extract_hidden_states"}
)
"""Speculation beside which vLLM schedules asynchronously; it switches that off for the others."""


@dataclass(frozen=True)
class Setting:
    """What a rule may look at."""

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


def check_options(setting: Setting) -> list[Finding]:
    return [finding for rule in _RULES for finding in rule(setting)]


def _dead_batch_size_switch(setting: Setting) -> list[Finding]:
    """Field case 14: releases that take the key do nothing with it; those that do not take it are told by `names`."""
    names = setting.speculation_names
    if "disable_by_batch_size" not in setting.speculation or names is None or "disable_by_batch_size" not in names:
        return []
    offer = f"use {schedule_for(setting.engine)}" if SCHEDULE in names else "remove it"
    return [
        warning(
            "option.dead",
            f"disable_by_batch_size = {setting.speculation['disable_by_batch_size']!r} has no effect: "
            "this vLLM takes it and never looks at it",
            offer,
        )
    ]


def _schedule(setting: Setting) -> list[Finding]:
    """Field case 15, and what the scheduler refuses only after the model was loaded."""
    schedule = setting.speculation.get(SCHEDULE)
    if schedule is None:
        return []
    findings: list[Finding] = []
    k = setting.speculation.get("num_speculative_tokens")
    if fault := schedule_fault(schedule):
        findings.append(
            error(
                "option.schedule",
                f"{SCHEDULE} = {schedule!r}: {fault}",
                f"write: {SCHEDULE} = [[1, 16, 5], [17, 64, 2]]",
            )
        )
    elif type(k) is int and (above := max(entry[2] for entry in schedule)) > k:
        findings.append(
            warning(
                "option.schedule_clamped",
                f"{SCHEDULE} asks for up to {above} tokens, num_speculative_tokens = {k} caps it",
                f"set num_speculative_tokens = {above}, or lower the schedule",
            )
        )
    parallel = setting.engine.get("data_parallel_size") or 1
    if type(parallel) is int and parallel > 1:
        findings.append(
            warning(
                "option.schedule_off",
                f"{SCHEDULE} is switched off by vLLM with data_parallel_size = {parallel}: K stays at {k}",
                "remove the schedule, or serve with data_parallel_size = 1",
            )
        )
    return findings


def schedule_fault(schedule: Any) -> str | None:
    """What `vllm.v1.spec_decode.dynamic` refuses about a schedule by batch size; None when nothing."""
    if not isinstance(schedule, list) or not schedule:
        return "expected a list of [first, last, K]"
    entries = []
    for entry in schedule:
        if not isinstance(entry, list | tuple) or len(entry) != 3 or not all(type(part) is int for part in entry):
            return f"{entry!r} is no [first, last, K]"
        first, last, k = entry
        if first < 1 or last < first:
            return f"the range {first} to {last} is empty or not positive"
        if k < 0:
            return f"K = {k} is negative"
        entries.append((first, last))
    entries.sort()
    if entries[0][0] != 1:
        return f"the first range starts at {entries[0][0]}, expected 1"
    for (_, last), (first, _) in pairwise(entries):
        if first <= last:
            return f"the ranges overlap at {first}"
    return None


def _draft_length(setting: Setting) -> list[Finding]:
    k = setting.speculation.get("num_speculative_tokens")
    if setting.facts is not None and setting.facts.num_speculative_tokens is not None:
        k = setting.facts.num_speculative_tokens
    if type(k) is not int or k in USUAL_K or setting.method == "suffix":
        return []
    why = (
        "positions past the seventh are accepted under 10 % of the time in most reports, and every one is computed"
        if k > USUAL_K[-1]
        else "a draft that is accepted often would save more with a longer one"
    )
    return [
        info(
            "option.draft_length",
            f"num_speculative_tokens = {k} is outside the usual {USUAL_K[0]} to {USUAL_K[-1]}: {why}",
            "look at the acceptance by position under your load",
        )
    ]


def _prompt_lookup_without_ngram(setting: Setting) -> list[Finding]:
    keys = [key for key in ("prompt_lookup_max", "prompt_lookup_min") if key in setting.speculation]
    if not keys or setting.method in (None, "ngram", "ngram_gpu"):
        return []
    return [
        warning(
            "option.ignored",
            f'{" and ".join(keys)} of [engine.speculative_config] are ignored with method = "{setting.method}"',
            'remove them, or set method = "ngram"',
        )
    ]


def _draft_keys_without_draft(setting: Setting) -> list[Finding]:
    if setting.method not in ("ngram", "ngram_gpu", "suffix"):
        return []
    draft_only = ("model", "draft_tensor_parallel_size", "quantization", "max_model_len", "revision")
    keys = [key for key in draft_only if setting.speculation.get(key) not in (None, "ngram", "[ngram]", "ngram_gpu")]
    if not keys:
        return []
    return [
        warning(
            "option.ignored",
            f'{", ".join(keys)} of [engine.speculative_config] are ignored: method = "{setting.method}" '
            "has no draft model",
            'remove them, or set method = "draft_model"',
        )
    ]


def _short_draft_context(setting: Setting) -> list[Finding]:
    shorter = setting.speculation.get("max_model_len")
    longest = setting.facts.max_model_len if setting.facts is not None else setting.engine.get("max_model_len")
    if type(shorter) is not int or type(longest) is not int or not 0 < shorter < longest:
        return []
    return [
        info(
            "option.draft_context",
            f"speculation stops {shorter:,} tokens into a request (speculative max_model_len), "
            f"requests may have {longest:,}",
        )
    ]


def _chunked_prefill(setting: Setting) -> list[Finding]:
    """vLLM refuses this itself; here for a laptop without vLLM."""
    budget, longest = setting.engine.get("max_num_batched_tokens"), setting.engine.get("max_model_len")
    if setting.facts is not None or setting.engine.get("enable_chunked_prefill") is not False:
        return []
    if type(budget) is not int or type(longest) is not int or budget >= longest:
        return []
    return [
        error(
            "option.batched_tokens",
            f"max_num_batched_tokens = {budget} is under max_model_len = {longest} and enable_chunked_prefill is off: "
            "a longer prompt could never be scheduled",
            "set enable_chunked_prefill = true, or max_num_batched_tokens to max_model_len",
        )
    ]


def _cpu_block_size(setting: Setting) -> list[Finding]:
    size = setting.engine.get("block_size")
    if not setting.is_cpu or type(size) is not int or size % CPU_BLOCK_MULTIPLE == 0:
        return []
    nearest_size = max(CPU_BLOCK_MULTIPLE, round(size / CPU_BLOCK_MULTIPLE) * CPU_BLOCK_MULTIPLE)
    return [
        warning(
            "option.block_size",
            f"block_size = {size}: attention on CPU wants a multiple of {CPU_BLOCK_MULTIPLE}",
            f"set block_size = {nearest_size}",
        )
    ]


def _cpu_memory_share(setting: Setting) -> list[Finding]:
    if not setting.is_cpu or setting.facts is None:
        return []
    space, fixed = setting.env(CPU_KV_SPACE), setting.engine.get("kv_cache_memory_bytes")
    if space is not None and fixed is not None:
        return [
            warning(
                "option.overruled",
                f"the environment's {CPU_KV_SPACE} = {space} (GiB) overrules kv_cache_memory_bytes = {fixed}",
                f"unset {CPU_KV_SPACE}",
            )
        ]
    if setting.facts.kv_cache_memory_bytes is not None:
        return []
    share = setting.facts.gpu_memory_utilization
    asked = f", {amount(share * setting.machine_bytes)} here" if setting.machine_bytes else ""
    return [
        warning(
            "option.cpu_share",
            f"on CPU gpu_memory_utilization = {share:g} means that share of the machine's memory{asked}; the start "
            "fails when other programs hold it",
            "set kv_cache_memory_bytes",
        )
    ]


def _overruled_share(setting: Setting) -> list[Finding]:
    facts = setting.facts
    if facts is None or facts.device == "cpu" or facts.kv_cache_memory_bytes is None:
        return []
    if "gpu_memory_utilization" not in setting.engine:
        return []
    return [
        info(
            "option.overruled",
            f"kv_cache_memory_bytes sizes the KV cache; gpu_memory_utilization = {facts.gpu_memory_utilization:g} "
            "only says how much must be free at the start",
        )
    ]


def _blocks_override(setting: Setting) -> list[Finding]:
    count = setting.engine.get("num_gpu_blocks_override")
    if count is None:
        return []
    return [
        info(
            "option.blocks_override",
            f"num_gpu_blocks_override = {count} is taken as it is, whatever memory there is; vLLM has it for tests",
            "kv_cache_memory_bytes says the same in bytes",
        )
    ]


def _priority(setting: Setting) -> list[Finding]:
    if setting.engine.get("scheduling_policy") != "priority":
        return []
    return [
        info(
            "option.priority",
            'scheduling_policy = "priority": a request without "priority" has 0, lower numbers go first, and a '
            "running request can be preempted by one of lower number",
        )
    ]


def _async_scheduling(setting: Setting) -> list[Finding]:
    if setting.method is None or setting.method in _ASYNC_METHODS or setting.is_cpu:
        return []
    if setting.engine.get("async_scheduling") is True and setting.facts is not None:
        return []  # refused by vLLM, told by `config`
    return [
        info(
            "option.async_off",
            f'asynchronous scheduling is switched off by vLLM beside method = "{setting.method}": '
            "the GPU waits for the scheduler between steps",
            'method = "ngram_gpu" keeps it on' if setting.method == "ngram" else "",
        )
    ]


_RULES: tuple[Callable[[Setting], list[Finding]], ...] = (
    _dead_batch_size_switch,
    _schedule,
    _draft_length,
    _prompt_lookup_without_ngram,
    _draft_keys_without_draft,
    _short_draft_context,
    _chunked_prefill,
    _cpu_block_size,
    _cpu_memory_share,
    _overruled_share,
    _blocks_override,
    _priority,
    _async_scheduling,
)
