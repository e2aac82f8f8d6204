"""The memory forecast: what the engine will take on each device, against what is free there now.

vLLM asks for memory twice, and both can refuse. First, before loading anything, `gpu_memory_utilization` x total must
be free (on a GPU always, on CPU unless the KV cache has a fixed size). Then weights, KV blocks and what running takes
must fit. The sizes of weights are read from the files; the rest is an estimate and called one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from engine_host.protocol.profiles import Finding

from .config import ConfigFacts
from .devices import Device
from .files import ModelFiles
from .findings import amount, error, info, warning

GPU_OVERHEAD_BYTES = 3 << 30
"""Context, activations of a step, CUDA graphs: an engine put to sleep (weights and KV gone) left 3.2 GB on an H200."""

CPU_OVERHEAD_BYTES = 1 << 30
"""Interpreter, torch and activations of one engine core: 0.6 GB once vLLM is imported, and buffers of a step."""

TIGHT = 0.05
"""Less than this share of what is needed left over is called tight: the forecast is not better than that."""

_FLOATS = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
_ONLINE_QUANTIZATION = {"fp8": 0.5, "bitsandbytes": 0.25}
"""Methods that shrink 16-bit weights while loading, when the checkpoint itself is not quantised."""


@dataclass(frozen=True)
class Need:
    """Of one device."""

    weights_bytes: int | None
    kv_bytes: int | None
    """None when only vLLM's profiling will tell: what is left of the budget."""
    overhead_bytes: int
    threshold_bytes: int | None
    """What vLLM wants to see free before it loads anything."""

    @property
    def takes_bytes(self) -> int | None:
        """What the engine will hold; None when the weights are unknown and there is no budget either."""
        if self.weights_bytes is not None and self.kv_bytes is not None:
            return self.weights_bytes + self.kv_bytes + self.overhead_bytes
        return self.threshold_bytes

    @property
    def asks_bytes(self) -> int | None:
        """What must be free for the start to succeed."""
        known = [size for size in (self.takes_bytes, self.threshold_bytes) if size is not None]
        return max(known, default=None)


@dataclass(frozen=True)
class Forecast:
    need: Need | None = None
    devices: int = 0
    needed_bytes: int | None = None
    """Of all devices together."""
    available_bytes: int | None = None
    fits_beside: bool | None = None
    """With the running engine left where it is; None when unknown."""
    fits_alone: bool | None = None
    """Once what the running engine gives back is free; None also when nobody knows how much that is."""
    kv_bytes: int | None = None
    """For KV blocks, on one device."""
    is_kv_exact: bool = False
    """The size is configured, not what profiling leaves."""


def weights_bytes(files: ModelFiles | None, facts: ConfigFacts, quantization: str | None, ranks: int) -> int | None:
    """Of one rank in memory: floats become the engine's dtype while loading, quantised tensors stay as they are."""
    if files is None or files.weights is None:
        return None
    total = 0.0
    for dtype, size in files.weights.bytes_by_dtype.items():
        total += size * facts.dtype_bytes / _FLOATS[dtype] if dtype in _FLOATS else size
    if "quantization_config" not in files.config:
        total *= _ONLINE_QUANTIZATION.get(quantization or "", 1.0)
    return int(total / ranks)


def need_of(
    facts: ConfigFacts, model: ModelFiles, draft: ModelFiles | None, device: Device, kv_block_bytes: int | None
) -> Need:
    """What one device must provide. `kv_block_bytes`: one block with all its layers, for a fixed number of blocks."""
    is_cpu = facts.device == "cpu"
    ranks = facts.tensor_parallel_size * facts.pipeline_parallel_size
    parts = [weights_bytes(model, facts, facts.quantization, ranks)]
    if draft is not None:
        parts.append(weights_bytes(draft, facts, None, facts.draft_tensor_parallel_size))
    weights = None if None in parts else sum(part for part in parts if part is not None)
    threshold = int(device.total_bytes * facts.gpu_memory_utilization)
    kv: int | None = None
    if facts.num_gpu_blocks_override is not None and kv_block_bytes is not None:
        kv = facts.num_gpu_blocks_override * kv_block_bytes
    elif facts.kv_cache_memory_bytes is not None:
        kv = facts.kv_cache_memory_bytes
    if is_cpu:
        # One device, the machine, with all ranks on it.
        workers = facts.devices
        if weights is not None:
            weights *= ranks * facts.data_parallel_size_local
        kv = kv * workers if kv is not None else None
        # The worker's budget counts only when the KV cache has no size of its own.
        asked = None if facts.kv_cache_memory_bytes is not None else threshold * workers
        return Need(weights, kv, CPU_OVERHEAD_BYTES * workers, asked)
    return Need(weights, kv, GPU_OVERHEAD_BYTES, threshold)


def forecast_memory(
    facts: ConfigFacts, model: ModelFiles, draft: ModelFiles | None, devices: Sequence[Device]
) -> tuple[Forecast, list[Finding]]:
    need = need_of(facts, model, draft, devices[0], facts.block_bytes)
    asks, takes = need.asks_bytes, need.takes_bytes
    kv, is_exact = need.kv_bytes, need.kv_bytes is not None
    if is_exact and facts.device == "cpu" and kv is not None:
        kv //= facts.devices
    if kv is None and need.threshold_bytes is not None and need.weights_bytes is not None:
        share = facts.devices if facts.device == "cpu" else 1
        kv = (need.threshold_bytes - need.weights_bytes - need.overhead_bytes) // share
    available = sum(device.free_bytes for device in devices)
    if asks is None or takes is None:
        return Forecast(need, len(devices), None, available, None, None, kv, is_exact), []
    beside = all(device.free_bytes >= asks for device in devices)
    alone = _all_fit(asks, devices)
    result = Forecast(need, len(devices), asks * len(devices), available, beside, alone, kv, is_exact)
    return result, _findings(facts, need, asks, devices, result)


def _all_fit(asks: int, devices: Sequence[Device]) -> bool | None:
    """With the running engine gone."""
    unknown = [device for device in devices if device.given_back_bytes is None and device.free_bytes < asks]
    if any(_free_alone(device) < asks for device in devices if device not in unknown):
        return False
    if any(device.total_bytes < asks for device in unknown):
        return False
    return None if unknown else True


def _free_alone(device: Device) -> int:
    """Once the running engine is gone; without what nobody knows."""
    return min(device.total_bytes, device.free_bytes + (device.given_back_bytes or 0))


def _findings(facts: ConfigFacts, need: Need, asks: int, devices: Sequence[Device], result: Forecast) -> list[Finding]:
    tightest = min(devices, key=_free_alone)
    findings: list[Finding] = []
    if result.fits_alone is False:
        findings.append(_short(facts, need, asks, tightest))
    elif result.fits_alone is None:
        findings.append(
            warning(
                "memory.not_told",
                f"{amount(asks)} are needed on {tightest.name} and {amount(tightest.free_bytes)} are free beside the "
                "running engine; the driver does not tell how much of the rest is the running engine's",
                "in a container the driver cannot name processes: share the host's process ids (--pid=host) to know "
                "beforehand; a start that fails is rolled back",
            )
        )
    elif (result.kv_bytes or 0) < 0 and not result.is_kv_exact:
        budget = need.threshold_bytes or 0
        findings.append(
            error(
                "memory.no_kv",
                f"gpu_memory_utilization = {facts.gpu_memory_utilization:g} is {amount(budget)} of {tightest.name}, "
                f"weights {amount(need.weights_bytes or 0)} and about {amount(need.overhead_bytes)} for running leave "
                "nothing for KV blocks",
                "raise gpu_memory_utilization, spread over more GPUs with tensor_parallel_size, or quantise",
            )
        )
    elif _free_alone(tightest) < asks * (1 + TIGHT):
        findings.append(
            warning(
                "memory.tight",
                f"about {amount(asks)} are needed on {tightest.name} and {amount(_free_alone(tightest))} are free"
                f"{_given(tightest)}: the forecast is not exact to that",
                "leave some room: lower gpu_memory_utilization or kv_cache_memory_bytes",
            )
        )
    if result.fits_alone and not result.fits_beside:
        fullest = min(devices, key=lambda device: device.free_bytes)
        findings.append(
            info(
                "memory.not_beside",
                f"{amount(asks)} are needed on {fullest.name}, {amount(fullest.free_bytes)} are free beside the "
                f"running engine and {amount(_free_alone(fullest))} once it is gone: the switch has to stop it first",
            )
        )
    return findings


def _given(device: Device) -> str:
    given = device.given_back_bytes
    return f" (with {amount(given)} that the running engine gives back)" if given else ""


def _short(facts: ConfigFacts, need: Need, asks: int, device: Device) -> Finding:
    takes = need.takes_bytes or asks
    parts: Mapping[str, int | None] = {
        "weights": need.weights_bytes,
        "KV blocks": need.kv_bytes,
        "about": need.overhead_bytes,
    }
    made_of = f"weights {amount(need.weights_bytes)}, " if need.weights_bytes is not None else ""
    if need.kv_bytes is not None:
        made_of += f"KV blocks {amount(need.kv_bytes)}, "
    made_of += f"about {amount(parts['about'] or 0)} for running"
    if need.threshold_bytes is not None and need.threshold_bytes >= takes:
        made_of = f"gpu_memory_utilization {facts.gpu_memory_utilization:g} x {amount(device.total_bytes)}"
    held = "; ".join(str(holder) for holder in device.holders[:3])
    text = (
        f"{device.name}: {amount(asks)} are needed ({made_of}), "
        f"{amount(_free_alone(device))} of {amount(device.total_bytes)} are free{_given(device)}"
    )
    if held:
        text += f"; held by {held}" if facts.device != "cpu" else f"; largest processes: {held}"
    return error("memory.short", text, _remedy(facts, need, asks, device))


def _remedy(facts: ConfigFacts, need: Need, asks: int, device: Device) -> str:
    free = _free_alone(device)
    floor = (need.weights_bytes or 0) + need.overhead_bytes
    orphans = [holder for holder in device.holders if holder.is_orphan]
    if orphans:
        return f"end what a dead host left behind: kill {' '.join(str(holder.pid) for holder in orphans)}"
    if floor > free:
        return "end what holds the memory, take a smaller or quantised model, or more GPUs (tensor_parallel_size)"
    if need.threshold_bytes == asks and facts.kv_cache_memory_bytes is None and facts.device == "cpu":
        return "set kv_cache_memory_bytes: on CPU gpu_memory_utilization means a share of all memory"
    if need.threshold_bytes == asks:
        # Rounded down: what is written must fit.
        fits = int(free / device.total_bytes * 100) / 100
        return f"lower gpu_memory_utilization to {fits:g} or less, or end what holds the memory"
    return f"lower kv_cache_memory_bytes by {amount(asks - free)}, or end what holds the memory"
