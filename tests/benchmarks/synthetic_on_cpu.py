"""Synthetic acceptance for vLLM on CPU, which has it on GPUs alone: a plugin of vLLM, so that it reaches its core.

With `rejection_sample_method = "synthetic"` draft tokens are accepted by chance, at rates that the profile gives: what
a draft is worth does not matter then, what it costs does.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests import vllm_plugin


@contextlib.contextmanager
def offered(home: Path) -> Iterator[None]:
    """Let vLLM in the child processes of this one find the plugin; `home` is an empty directory."""
    with vllm_plugin.offered(home, "synthetic-on-cpu", f"{__name__}:install"):
        yield


def install() -> None:
    """Called by vLLM in each of its processes."""
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    from vllm.triton_utils.dispatcher import register_kernels
    from vllm.utils import cpu_triton_utils as kernels

    greedy, sampled = kernels._rejection_greedy_sample_kernel_impl, kernels._rejection_random_sample_kernel_impl

    # vLLM hands over by position what its own kernel takes; whether acceptance is synthetic comes last.
    def accept_greedy(*arguments: Any) -> None:
        *given, is_synthetic = arguments
        if is_synthetic:
            accept(*given)
        else:
            greedy(*given)

    def accept_sampled(*arguments: Any) -> None:
        """Only the warm-up comes here; the clients ask for greedy answers."""
        sampled(*arguments[:-1])

    kernels._rejection_greedy_sample_kernel_impl = accept_greedy
    kernels._rejection_random_sample_kernel_impl = accept_sampled
    register_kernels(
        {
            "vllm.v1.sample.rejection_sampler.rejection_greedy_sample_kernel": accept_greedy,
            "vllm.v1.sample.rejection_sampler.rejection_random_sample_kernel": accept_sampled,
        }
    )


def accept(
    output_token_ids: Any,
    cu_num_draft_tokens: Any,
    draft_token_ids: Any,
    target_argmax: Any,
    bonus_token_ids: Any,
    is_greedy: Any,
    max_spec_len: int,
    uniform_probs: Any,
    synthetic_conditional_rates: Any,
) -> None:
    """As vLLM's Triton kernel `rejection_greedy_sample_kernel` does it. `output_token_ids` [requests, max_spec_len + 1]
    is written; the drafts of all requests lie one behind the other and end at `cu_num_draft_tokens` [requests]."""
    import torch

    drafts, targets = draft_token_ids.tolist(), target_argmax.tolist()
    chances, rates = uniform_probs.tolist(), synthetic_conditional_rates.tolist()
    first = 0
    for request, end in enumerate(cu_num_draft_tokens.tolist()):
        tokens: list[int] = []
        for position, at in enumerate(range(first, end)):
            if chances[at] < rates[position] and drafts[at] >= 0:
                tokens.append(drafts[at])
            else:
                tokens.append(targets[at])
                break
        else:
            tokens.append(int(bonus_token_ids[request]))
        if is_greedy is None or is_greedy[request]:
            output_token_ids[request, : len(tokens)] = torch.tensor(tokens, dtype=output_token_ids.dtype)
        first = end
