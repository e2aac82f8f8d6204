"""Options of speculative decoding that vLLM accepts and that do not do what they say; see `options`."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

from engine_host.protocol.profiles import Finding

from .findings import error, info, warning
from .names import SCHEDULE, schedule_for
from .setting import Setting

USUAL_K = range(4, 9)
"""Draft lengths that pay in most reports: the first position is accepted over 70 %, the seventh under 10 %."""

_ASYNC_METHODS = frozenset(
    {"eagle", "eagle3", "mtp", "draft_model", "ngram_gpu", "dspark", "dflash", "extract_hidden_states"}
)
"""Speculation beside which vLLM schedules asynchronously; it switches that off for the others."""


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
    if not (fault := schedule_fault(schedule)):
        findings.append(
            warning(
                "option.schedule_slow",
                f"{SCHEDULE} is set: schedules by batch size have cost more than they saved (232 -> 24 to 157 tok/s in "
                "one report), and some releases give up full CUDA graphs for it",
                "compare tok/s with and without it under your load; without it K stays as num_speculative_tokens says",
            )
        )
    if fault:
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


SPECULATION_RULES: tuple[Callable[[Setting], list[Finding]], ...] = (
    _dead_batch_size_switch,
    _schedule,
    _draft_length,
    _prompt_lookup_without_ngram,
    _draft_keys_without_draft,
    _short_draft_context,
    _async_scheduling,
)
