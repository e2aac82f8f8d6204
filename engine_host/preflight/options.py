"""Options that vLLM accepts and that do not do what they say: dead, overruled, or contradictory.

What vLLM refuses is told by its own words (`config`); the rules here are about what it swallows. Each was read in the
code of 0.26 and 0.32. Where the configuration could not be built, the rules work on what the profile says.
"""

from __future__ import annotations

from collections.abc import Callable

from engine_host.protocol.profiles import Finding

from .findings import amount, error, info, warning
from .setting import Setting
from .speculation import SPECULATION_RULES

CPU_BLOCK_MULTIPLE = 32
CPU_KV_SPACE = "VLLM_CPU_KVCACHE_SPACE"


def check_options(setting: Setting) -> list[Finding]:
    return [finding for rule in _RULES for finding in rule(setting)]


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


_RULES: tuple[Callable[[Setting], list[Finding]], ...] = (
    *SPECULATION_RULES,
    _chunked_prefill,
    _cpu_block_size,
    _cpu_memory_share,
    _overruled_share,
    _blocks_override,
    _priority,
)
