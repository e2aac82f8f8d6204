"""A scheduler shaped like vLLM 0.26's: what our part reads and turns of it has other names there, and one assertion.

Written after `vllm/v1/core/sched/scheduler.py` of 0.26.0, cut down to admission and counting.
"""

from __future__ import annotations

from collections import deque
from enum import IntEnum
from types import SimpleNamespace
from typing import Any


class RequestStatus(IntEnum):
    WAITING = 1
    WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR = 2
    WAITING_FOR_REMOTE_KVS = 3
    WAITING_FOR_STREAMING_REQ = 4
    RUNNING = 5
    PREEMPTED = 6
    FINISHED_STOPPED = 7
    FINISHED_ABORTED = 9


class Block:
    def __init__(self, block_id: int) -> None:
        self.block_id, self.ref_cnt, self._block_hash, self.is_null = block_id, 0, None, block_id == 0


class Pool:
    def __init__(self, blocks: int) -> None:
        self.blocks = [Block(n) for n in range(blocks)]
        self.null_block = self.blocks[0]
        self.free = self.blocks[1:]

    def get_num_free_blocks(self) -> int:
        return len(self.free)


class FullAttentionManager:
    def __init__(self) -> None:
        self.req_to_blocks: dict[str, list[Block]] = {}


class OldScheduler:
    """Every request takes one block, decodes a token a step beside its draft, and none of it is a prompt."""

    def __init__(self, vllm_config: Any, blocks: int = 50) -> None:
        config = vllm_config.scheduler_config
        self.vllm_config, self.scheduler_config = vllm_config, config
        self.max_num_running_reqs = config.max_num_seqs
        self.max_num_scheduled_tokens = config.max_num_batched_tokens
        self.max_model_len = 1_000
        self.max_num_encoder_input_tokens = 0
        self.num_sampled_tokens_per_step = 1
        self.num_spec_tokens = 4
        self.dynamic_sd_lookup: list[int] | None = None
        self.need_mamba_block_aligned_split = False
        self.block_size = 16
        self.log_stats = True
        self.use_v2_model_runner = config.is_v2
        self.connector = None
        self.requests: dict[str, Any] = {}
        self.waiting: deque[Any] = deque()
        self.skipped_waiting: deque[Any] = deque()
        self.running: list[Any] = []
        self._pool, self._group = Pool(blocks), FullAttentionManager()
        manager = SimpleNamespace(
            block_pool=self._pool, coordinator=SimpleNamespace(single_type_managers=(self._group,))
        )
        self.kv_cache_manager = manager
        manager.usage = 0.0

    def add(self, name: str, status: RequestStatus = RequestStatus.WAITING, lora: Any = None) -> None:
        request = SimpleNamespace(
            request_id=name,
            status=status,
            priority=0,
            arrival_time=1.0,
            num_prompt_tokens=10,
            num_computed_tokens=0,
            num_preemptions=0,
            _output_token_ids=[],
            lora_request=lora,
        )
        self.requests[name] = request
        (self.waiting if status is RequestStatus.WAITING else self.skipped_waiting).append(request)

    def schedule(self, throttle_prefills: bool = False) -> Any:
        new = []
        while self.waiting and len(self.running) < self.max_num_running_reqs:
            request = self.waiting.popleft()
            request.status = RequestStatus.RUNNING
            block = self._pool.free.pop()
            block.ref_cnt = 1
            self._group.req_to_blocks[request.request_id] = [block]
            self.running.append(request)
            new.append(SimpleNamespace(req_id=request.request_id, num_computed_tokens=0))
        assert len(self.running) <= self.max_num_running_reqs
        self._measure()
        k = self.num_spec_tokens if self.dynamic_sd_lookup is None else self.dynamic_sd_lookup[len(self.running)]
        scheduled = {request.request_id: 1 + k for request in self.running}
        assert sum(scheduled.values()) <= self.max_num_scheduled_tokens
        return SimpleNamespace(
            scheduled_new_reqs=new,
            num_scheduled_tokens=scheduled,
            total_num_scheduled_tokens=sum(scheduled.values()),
            scheduled_spec_decode_tokens={name: [7] * k for name in scheduled} if k else {},
            num_spec_tokens_to_schedule=k,
            num_invalid_spec_tokens=None,
        )

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> dict[int, Any]:
        statistics = None
        for name in scheduler_output.num_scheduled_tokens:
            generated = model_runner_output.sampled_token_ids[model_runner_output.req_id_to_index[name]]
            if draft := scheduler_output.scheduled_spec_decode_tokens.get(name):
                statistics = self.make_spec_decoding_stats(
                    statistics,
                    num_draft_tokens=len(draft),
                    num_accepted_tokens=len(generated) - 1,
                    num_invalid_spec_tokens=scheduler_output.num_invalid_spec_tokens,
                    request_id=name,
                )
            self.requests[name]._output_token_ids.extend(generated)
        return {0: SimpleNamespace(scheduler_stats=SimpleNamespace(spec_decoding_stats=statistics))}

    def make_spec_decoding_stats(
        self,
        spec_decoding_stats: Any,
        num_draft_tokens: int,
        num_accepted_tokens: int,
        num_invalid_spec_tokens: Any,
        request_id: str,
    ) -> Any:
        sofar = spec_decoding_stats or SimpleNamespace(num_draft_tokens=0, num_accepted_tokens=0)
        sofar.num_draft_tokens += num_draft_tokens
        sofar.num_accepted_tokens += num_accepted_tokens
        return sofar

    def finish_requests(self, request_ids: str, finished_status: Any) -> None:
        request = self.requests[request_ids]
        self.running.remove(request)
        request.status = finished_status
        self._free_request(request)

    def _free_request(self, request: Any, delay_free_blocks: bool = False) -> None:
        for block in self._group.req_to_blocks.pop(request.request_id):
            block.ref_cnt = 0
            self._pool.free.append(block)
        del self.requests[request.request_id]
        self._measure()

    def has_requests(self) -> bool:
        return bool(self.requests)

    def shutdown(self) -> None: ...

    def _measure(self) -> None:
        total = len(self._pool.blocks) - 1
        self.kv_cache_manager.usage = 1.0 - len(self._pool.free) / total


def old_config(max_num_seqs: int = 16, data_parallel_size: int = 1, method: str = "ngram", is_v2: bool = False) -> Any:
    return SimpleNamespace(
        speculative_config=SimpleNamespace(method=method),
        scheduler_config=SimpleNamespace(
            max_num_seqs=max_num_seqs, max_num_batched_tokens=256, enable_chunked_prefill=True, is_v2=is_v2
        ),
        parallel_config=SimpleNamespace(data_parallel_index=0, data_parallel_size=data_parallel_size),
    )
