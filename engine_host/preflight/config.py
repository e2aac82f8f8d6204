"""Whether the installed vLLM builds a configuration from the profile, and what comes out of it.

The work is done by `engine_host.engine.vllm.config_probe` in a process of its own: importing vLLM takes seconds, and
what it does to its process (environment, devices, signal handlers) must not happen to the host.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from engine_host.engine.log_file import error_lines, last_lines, root_reason
from engine_host.profiles import ValidNames
from engine_host.protocol.profiles import Finding

from .child import ChildError, Ended, ask_child
from .findings import error, info

PROBE = "engine_host.engine.vllm.config_probe"

_MOST_NOTICES = 3
_NOTICE_CHARS = 200
_REASON_CHARS = 320


class ConfigFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What vLLM resolved, as far as the checks need it. KV figures are of one rank (one GPU)."""

    device: str
    """`cuda`, `cpu`, ..."""
    dtype_bytes: int
    vocab_size: int
    quantization: str | None = None
    max_model_len: int
    is_length_fitted: bool = False
    """`max_model_len = -1`: vLLM takes the longest that fits."""
    block_size: int | None = None
    kv_bytes_per_token: int | None = None
    """All layers of the target; None for a model without an attention cache."""
    draft_kv_bytes_per_token: int | None = 0
    is_kv_uniform: bool = True
    """False: vLLM groups and pads layers, so that sizes computed from bytes per token are upper bounds."""
    kv_cache_memory_bytes: int | None = None
    """With VLLM_CPU_KVCACHE_SPACE counted in."""
    num_gpu_blocks_override: int | None = None
    gpu_memory_utilization: float
    enable_prefix_caching: bool | None = None
    enable_chunked_prefill: bool | None = None
    max_num_batched_tokens: int
    max_num_seqs: int
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size_local: int = 1
    speculation_method: str | None = None
    num_speculative_tokens: int | None = None
    draft_tensor_parallel_size: int = 1

    @property
    def block_bytes(self) -> int | None:
        """One KV block with the layers of target and draft."""
        if not self.block_size or not self.kv_bytes_per_token:
            return None
        return self.block_size * (self.kv_bytes_per_token + (self.draft_kv_bytes_per_token or 0))

    @property
    def devices(self) -> int:
        return self.tensor_parallel_size * self.pipeline_parallel_size * self.data_parallel_size_local


class ProbeNames(msgspec.Struct, frozen=True, kw_only=True):
    """The argument names of the installed vLLM."""

    engine: list[str]
    server: list[str]
    nested: dict[str, list[str]]

    @classmethod
    def of(cls, names: ValidNames) -> ProbeNames:
        nested = {table: sorted(keys) for table, keys in names.nested.items()}
        return cls(engine=sorted(names.engine), server=sorted(names.server), nested=nested)

    def to_valid(self) -> ValidNames:
        return ValidNames(engine=self.engine, server=self.server, nested=self.nested)


class ProbeAnswer(msgspec.Struct, frozen=True, kw_only=True):
    vllm_version: str | None = None
    names: ProbeNames | None = None
    facts: ConfigFacts | None = None
    """None when vLLM refused, or when a key is unknown."""
    refusal: str | None = None
    """vLLM's own reason."""
    warnings: list[str] = []
    """What vLLM said on the way."""


class Probed(msgspec.Struct, frozen=True, kw_only=True):
    """How the process ended: with an answer, or with findings that say why there is none."""

    answer: ProbeAnswer = msgspec.field(default_factory=ProbeAnswer)
    findings: list[Finding] = []


async def probe_config(
    engine: Mapping[str, Any],
    server: Mapping[str, Any],
    *,
    deadline_s: float,
    environment: Mapping[str, str] | None = None,
    command: Sequence[str] = (sys.executable, "-m", PROBE),
) -> Probed:
    """Build the configuration in a child process. Raises nothing but cancellation; the child is gone at the return."""
    request = msgspec.json.encode({"engine": engine, "server": server, "deadline_s": deadline_s})
    try:
        ended = await ask_child(command, request, deadline_s, environment)
    except ChildError as fault:
        return Probed(findings=[error("config.crashed", f"no process to build the configuration in: {fault}")])
    except TimeoutError:
        return Probed(
            findings=[
                error(
                    "config.timeout",
                    f"vLLM did not build the configuration within {deadline_s:.0f} s",
                    "a model that is not on this machine is looked up on the Hub first; give a directory, or set "
                    "HF_HUB_OFFLINE=1",
                )
            ]
        )
    try:
        answer = msgspec.json.decode(ended.output, type=ProbeAnswer)
    except msgspec.MsgspecError:
        return Probed(findings=[_crash(ended)])
    return probed(answer, engine)


def probed(answer: ProbeAnswer, engine: Mapping[str, Any]) -> Probed:
    """What an answer about `[engine]` finds."""
    findings = [_refusal(answer.refusal)] if answer.refusal is not None else []
    return Probed(answer=answer, findings=findings + _notices(answer.warnings, engine))


def _refusal(reason: str) -> Finding:
    text = f"vLLM refuses the configuration: {_cut(reason, _REASON_CHARS)}"
    for pattern, remedy in _REMEDIES:
        if pattern.search(reason):
            return error("config.refused", text, remedy)
    return error("config.refused", text, "mend what it names in [engine]")


_REMEDIES = (
    (
        re.compile(r"max_num_batched_tokens \(\d+\) is smaller than max_model_len"),
        "set enable_chunked_prefill = true, or raise max_num_batched_tokens to max_model_len",
    ),
    (
        re.compile(r"same vocabulary size"),
        "take a draft of the same vocabulary size, or set use_heterogeneous_vocab = true in "
        "[engine.speculative_config]",
    ),
    (re.compile(r"prompt_lookup_m"), "set prompt_lookup_max, and prompt_lookup_min not above it"),
    (
        re.compile(r"User-specified max_model_len"),
        "lower max_model_len to what the model was made for, or set VLLM_ALLOW_LONG_MAX_MODEL_LEN=1",
    ),
    (re.compile(r"Sleep mode is not supported"), "remove enable_sleep_mode: it needs a GPU"),
    (re.compile(r"Arctic Inference"), "pip install arctic-inference, or take another method"),
    (re.compile(r"not a local folder|HFValidationError|Hub|huggingface", re.I), "give the directory of the model"),
)
"""What to do about the refusals that operators meet most, by the words of vLLM 0.26 and 0.32."""


def _crash(ended: Ended) -> Finding:
    said = error_lines(ended.log, limit=2) or last_lines(ended.log, limit=2)
    reason = root_reason(ended.log) or " / ".join(said) or "it printed nothing"
    exit_code = ended.exit_code
    how = f"by signal {-exit_code}" if exit_code is not None and exit_code < 0 else f"with exit code {exit_code}"
    return error(
        "config.crashed",
        f"building the configuration ended {how}: {reason}",
        f"see all of it: {Path(sys.executable).name} -c 'import vllm'",
    )


def _notices(warnings: Sequence[str], engine: Mapping[str, Any]) -> list[Finding]:
    """vLLM's own warnings about keys that the profile sets; the others are about the machine, the same every time."""
    nested = engine.get("speculative_config")
    keys = {*engine, *(nested if isinstance(nested, Mapping) else ())} - {"model", "method"}
    words = re.compile(r"\b(?:" + "|".join(map(re.escape, keys)) + r")\b") if keys else None
    texts = [_cut(" ".join(warning.split()), _NOTICE_CHARS) for warning in warnings]
    told = list(dict.fromkeys(text for text in texts if words is not None and words.search(text)))
    return [info("config.notice", f"vLLM says: {text}") for text in told[:_MOST_NOTICES]]


def _cut(text: str, limit: int) -> str:
    """Its first sentences: the advice after them is for another command line."""
    if len(text) <= limit:
        return text
    sentences, cut, _ = text[:limit].rpartition(". ")
    return f"{sentences}." if cut else text[: limit - 1] + "…"
