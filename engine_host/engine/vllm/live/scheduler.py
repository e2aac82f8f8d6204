"""The two classes that an engine core loads by name: vLLM's scheduler and its asynchronous one, steered."""

from __future__ import annotations

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from engine_host.engine.vllm.live.steered import Steered


class SteeredScheduler(Steered, Scheduler):  # type: ignore[misc]
    pass


class SteeredAsyncScheduler(Steered, AsyncScheduler):  # type: ignore[misc]
    pass
