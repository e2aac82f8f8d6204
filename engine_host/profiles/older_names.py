"""Names that vLLM's arguments had before, and what became of them.

From the older releases' argument lists. Each entry says what the import did in words, since a name that quietly meant
something else is how a deployment changes behind its operator's back.
"""

from __future__ import annotations

import msgspec

from engine_host.profiles.arguments import Kind, Takes


class Older(msgspec.Struct, frozen=True):
    note: str
    """What became of it."""
    target: str | None = None
    """Dotted, as it is called today; `None`: it does nothing any more and is left out."""
    kind: Kind = "text"
    takes: Takes = "one"
    values: dict[str, str | None] | None = None
    """Older value -> today's; `None`: leave it out. What is not named here stays."""


def _renamed(target: str, kind: Kind = "text", takes: Takes = "one") -> Older:
    return Older(f"is called {target} today", target, kind, takes)


def _gone(note: str, takes: Takes = "one") -> Older:
    return Older(f"{note}; left out", takes=takes)


OLDER: dict[str, Older] = {
    "speculative_model": Older(
        "is called speculative_config.model today", "speculative_config.model", values={"[ngram]": None}
    ),
    "num_speculative_tokens": _renamed("speculative_config.num_speculative_tokens", "int"),
    "speculative_max_model_len": _renamed("speculative_config.max_model_len", "int"),
    "speculative_draft_tensor_parallel_size": _renamed("speculative_config.draft_tensor_parallel_size", "int"),
    "speculative_model_quantization": _renamed("speculative_config.quantization"),
    "ngram_prompt_lookup_max": _renamed("speculative_config.prompt_lookup_max", "int"),
    "ngram_prompt_lookup_min": _renamed("speculative_config.prompt_lookup_min", "int"),
    "swap_space": Older(
        "swapped whole sequences and is gone; kv_offloading_size offloads KV blocks to CPU memory instead. Its GiB are "
        "the total, where swap_space counted for each GPU",
        "kv_offloading_size",
        "float",
        values={"0": None, "0.0": None},
    ),
    "guided_decoding_backend": _renamed("structured_outputs_config.backend"),
    "cuda_graph_sizes": _renamed("cudagraph_capture_sizes", "int", "many"),
    "override_pooler_config": _renamed("pooler_config", "json"),
    "speculative_disable_by_batch_size": _gone(
        "has no effect any more; speculative_config.num_speculative_tokens_per_batch_size gives a K by batch size"
    ),
    "speculative_disable_mqa_scorer": _gone("has no effect any more", "none"),
    "spec_decoding_acceptance_method": _gone("has no effect any more; see speculative_config.rejection_sample_method"),
    "typical_acceptance_sampler_posterior_threshold": _gone("has no effect any more"),
    "typical_acceptance_sampler_posterior_alpha": _gone("has no effect any more"),
    "disable_logprobs_during_spec_decoding": _gone("has no effect any more", "maybe"),
    "disable_log_requests": _gone("is the default today (enable_log_requests turns logging on)", "none"),
    "enable_reasoning": _gone("is implied by reasoning_parser today", "none"),
    "disable_frontend_multiprocessing": _gone("does nothing for engine-host, which runs vLLM in its process", "none"),
    "max_seq_len_to_capture": _gone("has no effect any more; see max_cudagraph_capture_size"),
    "device": _gone("is found out by vLLM itself today"),
    "num_scheduler_steps": _gone("multi-step scheduling is gone"),
    "multi_step_stream_outputs": _gone("multi-step scheduling is gone", "maybe"),
    "num_lookahead_slots": _gone("has no effect any more"),
    "scheduler_delay_factor": _gone("has no effect any more"),
    "preemption_mode": _gone("preempted requests are always computed anew today"),
    "use_v2_block_manager": _gone("is the only block manager today", "none"),
    "disable_async_output_proc": _gone("has no effect any more", "none"),
    "max_num_partial_prefills": _gone("has no effect any more"),
    "max_long_partial_prefills": _gone("has no effect any more"),
    "tokenizer_pool_size": _gone("has no effect any more"),
    "tokenizer_pool_type": _gone("has no effect any more"),
    "tokenizer_pool_extra_config": _gone("has no effect any more"),
    "lora_extra_vocab_size": _gone("has no effect any more"),
    "engine_use_ray": _gone("has no effect any more", "none"),
    "worker_use_ray": Older(
        'is distributed_executor_backend = "ray" today', "distributed_executor_backend", "text", "none"
    ),
}

OLDER_NESTED: dict[str, dict[str, tuple[str | None, str]]] = {
    "speculative_config": {
        "ngram_prompt_lookup_max": ("prompt_lookup_max", "is called prompt_lookup_max"),
        "ngram_prompt_lookup_min": ("prompt_lookup_min", "is called prompt_lookup_min"),
        "speculative_model": ("model", "is called model"),
        "speculative_max_model_len": ("max_model_len", "is called max_model_len"),
        "disable_by_batch_size": (
            None,
            "has no effect any more; num_speculative_tokens_per_batch_size gives a K by batch size; left out",
        ),
    }
}
"""Keys inside a mapping: (today's name or `None` for gone, what became of it)."""

ENVIRONMENT: dict[str, tuple[str, str]] = {
    "VLLM_SCHEDULER_POLICY": ("scheduling_policy", "is the argument scheduling_policy today"),
    "VLLM_ATTENTION_BACKEND": ("attention_backend", "is the argument attention_backend today"),
}
"""Environment variables that became arguments."""
