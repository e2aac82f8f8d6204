"""vLLM's real scheduler without an engine: its model is a configuration file, its model runner a few made-up tokens.

As vLLM's own tests build it. It needs no device, and is the same code that runs in an engine core. Another release's
files at the front of `PYTHONPATH` do as well, without what is compiled of it: these tests pass on 0.26.0 and 0.33.0.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "vocab_size": 1_000,
    "max_position_embeddings": 32_768,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
EOS = 2
BLOCK_SIZE = 16


def scheduler_config(
    home: Path,
    *,
    blocks: int,
    max_num_seqs: int,
    max_tokens: int,
    k: int,
    policy: str = "fcfs",
    is_async: bool = False,
    max_model_len: int = 4_096,
) -> Any:
    """The `VllmConfig`."""
    from vllm.config import CacheConfig, DeviceConfig, ModelConfig, SchedulerConfig, SpeculativeConfig, VllmConfig

    (home / "config.json").write_text(json.dumps(MODEL))
    model = ModelConfig(
        model=str(home), dtype="bfloat16", skip_tokenizer_init=True, max_model_len=max_model_len, seed=0
    )
    scheduling = SchedulerConfig(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_tokens,
        max_model_len=max_model_len,
        is_encoder_decoder=False,
        enable_chunked_prefill=True,
        async_scheduling=is_async,
        policy=policy,
    )
    cache = CacheConfig(block_size=BLOCK_SIZE, enable_prefix_caching=True, gpu_memory_utilization=0.1)
    cache.num_gpu_blocks = blocks
    speculation = None
    if k:
        # Asynchronously vLLM drafts with what runs on the device alone.
        method = "ngram_gpu" if is_async else "ngram"
        speculation = SpeculativeConfig(method=method, num_speculative_tokens=k, prompt_lookup_max=3)
    config = VllmConfig(
        model_config=model,
        scheduler_config=scheduling,
        cache_config=cache,
        speculative_config=speculation,
        device_config=DeviceConfig("cpu"),
    )
    if speculation is not None and is_async:
        speculation.method = "draft_model"  # with no draft to load; the scheduler looks at the name alone
    return config


def make(scheduler_class: type, config: Any) -> Any:
    """A scheduler of this class, with one group of full attention."""
    import torch
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.structured_output import StructuredOutputManager

    spec = FullAttentionSpec(block_size=BLOCK_SIZE, num_kv_heads=1, head_size=1, dtype=torch.float32)
    caches = KVCacheConfig(
        num_blocks=config.cache_config.num_gpu_blocks,
        kv_cache_tensors=[],
        kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
    )
    return scheduler_class(
        vllm_config=config,
        kv_cache_config=caches,
        structured_output_manager=StructuredOutputManager(config),
        block_size=BLOCK_SIZE,
        log_stats=True,
    )


class Runner:
    """Drives a scheduler as an engine core does, with made-up tokens in place of a model."""

    def __init__(self, scheduler: Any, accept: Callable[[str, int], int] = lambda request_id, drafted: drafted) -> None:
        """`accept`: of so many draft tokens, how many the model agrees to."""
        from vllm.utils.hashing import sha256
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash

        init_none_hash(sha256)
        self.scheduler = scheduler
        self._accept = accept
        self._hasher = get_request_block_hasher(BLOCK_SIZE, sha256)
        self.drafted = self.accepted = self.preempted = 0
        """As vLLM's own statistics of every step have them."""
        self.usages: list[float] = []

    def add(self, request_id: str, prompt: Sequence[int] | int = 10, max_tokens: int = 50, **options: Any) -> Any:
        from vllm.sampling_params import SamplingParams
        from vllm.v1.request import Request

        tokens = list(range(10, 10 + prompt)) if isinstance(prompt, int) else list(prompt)
        params = SamplingParams(max_tokens=max_tokens, ignore_eos=True, **options.pop("sampling", {}))
        params.update_from_generation_config({}, EOS)
        request = Request(
            request_id=request_id,
            prompt_token_ids=tokens,
            sampling_params=params,
            pooling_params=None,
            block_hasher=self._hasher,
            **options,
        )
        self.scheduler.add_request(request)
        return request

    def step(self, *, before_update: Callable[[], None] = lambda: None) -> Any:
        """One step of a synchronous engine core; returns the scheduler's output."""
        output = self.scheduler.schedule()
        before_update()
        self.update(output)
        return output

    def update(self, output: Any) -> None:
        outputs = self.scheduler.update_from_output(output, self.result(output))
        for batch in outputs.values():
            if (stats := batch.scheduler_stats) is not None:
                self.usages.append(stats.kv_cache_usage)
                if (drafting := stats.spec_decoding_stats) is not None:
                    self.drafted += drafting.num_draft_tokens
                    self.accepted += drafting.num_accepted_tokens
        self._draft(output)

    def result(self, output: Any) -> Any:
        from vllm.v1.outputs import ModelRunnerOutput

        ids = list(output.num_scheduled_tokens)
        return ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={request_id: n for n, request_id in enumerate(ids)},
            sampled_token_ids=[self._generated(request_id, output) for request_id in ids],
        )

    def _generated(self, request_id: str, output: Any) -> list[int]:
        request = self.scheduler.requests.get(request_id)
        drafts = output.scheduled_spec_decode_tokens.get(request_id, ())
        if request is not None and request.num_computed_tokens < request.num_tokens and not drafts:
            return []  # in the middle of a prompt
        return [7] * (1 + self._accept(request_id, len(drafts)))

    def _draft(self, output: Any) -> None:
        from vllm.v1.outputs import DraftTokenIds

        if self.scheduler.scheduler_config.async_scheduling:
            return  # the worker keeps them; the scheduler knows their number alone
        k = output.num_spec_tokens_to_schedule
        alive = [request_id for request_id in output.num_scheduled_tokens if request_id in self.scheduler.requests]
        if k and alive:
            self.scheduler.update_draft_token_ids(DraftTokenIds(alive, [[7] * k for _ in alive]))


def environment(boards: Sequence[Any]) -> Mapping[str, str]:
    """For a scheduler to find its boards by."""
    import msgspec

    from engine_host.live.layout import ENVIRONMENT

    return {ENVIRONMENT: msgspec.json.encode([board.address for board in boards]).decode()}
