"""What the part inside the scheduler costs a step: vLLM's real scheduler with it and without, alternating.

    python -m tests.benchmarks.live_scheduler_cost [--requests 256] [--blocks 60000] [--steps 400] [--gpu-ms 10]

256 requests decode with five draft tokens each, half of them accepted, in 60,000 blocks; there is no model, what it
would answer is made up. Reported per step, over `schedule()` and `update_from_output()`:
  - `processor`: time of the scheduler's own thread, medians of with and without;
  - `hooks`: time in our code alone, on that thread;
  - `step`: by the clock, with a pause in place of the model that leaves the interpreter to others. What the publisher's
    thread takes from the scheduler shows here.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from engine_host.live.board import Board
from tests.unit.live import real_scheduler
from tests.unit.live.real_scheduler import BLOCK_SIZE, Runner

_HOOKS = ("before_schedule", "after_schedule", "before_update", "after_update", "rests", "ends")


class Subject:
    """A scheduler with all its requests running."""

    def __init__(self, scheduler_class: type, requests: int, blocks: int) -> None:
        with tempfile.TemporaryDirectory() as home:
            config = real_scheduler.scheduler_config(
                Path(home),
                blocks=blocks,
                max_num_seqs=requests,
                max_tokens=65_536,
                k=5,
                max_model_len=32_768,
            )
        self.scheduler = real_scheduler.make(scheduler_class, config)
        self.runner = Runner(self.scheduler, accept=lambda request_id, drafted: drafted // 2)
        # Half of the blocks are held at the beginning; the rest is room to grow.
        prompt = blocks // requests // 2 * BLOCK_SIZE
        for n in range(requests):
            self.runner.add(f"cmpl-{n:032x}", [n + 10] * prompt, 100_000)
        while any(r.num_output_tokens == 0 for r in self.scheduler.requests.values()):
            self.runner.step()
        assert len(self.scheduler.running) == requests

    def steps(self, n: int, gpu_s: float) -> tuple[list[float], list[float]]:
        """`(processor seconds, seconds by the clock without the pause)` of every step."""
        processor, clock = [], []
        scheduler, runner = self.scheduler, self.runner
        for _ in range(n):
            began, used = time.perf_counter(), time.thread_time()
            output = scheduler.schedule()
            used_s, took_s = time.thread_time() - used, time.perf_counter() - began
            if gpu_s:
                time.sleep(gpu_s)
            result = runner.result(output)  # fresh from the model's process, as far as the processor's cache goes
            began, used = time.perf_counter(), time.thread_time()
            scheduler.update_from_output(output, result)
            processor.append(used_s + time.thread_time() - used)
            clock.append(took_s + time.perf_counter() - began)
            runner._draft(output)
        return processor, clock


def in_hooks(subject: Subject, steps: int) -> list[float]:
    """Seconds of every step in our code, on the scheduler's thread."""
    ours = subject.scheduler._engine_host
    spent = [0.0]
    found = []
    for name in _HOOKS:
        hook = getattr(ours, name)

        def timed(*arguments: Any, hook: Any = hook) -> Any:
            began = time.perf_counter_ns()
            try:
                return hook(*arguments)
            finally:
                spent[0] += time.perf_counter_ns() - began

        setattr(ours, name, timed)
    for _ in range(steps):
        spent[0] = 0.0
        subject.steps(1, 0.002)
        found.append(spent[0] / 1e9)
    for name in _HOOKS:
        delattr(ours, name)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=256)
    parser.add_argument("--blocks", type=int, default=60_000)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--gpu-ms", type=float, default=10.0)
    options = parser.parse_args()

    from vllm.v1.core.sched.scheduler import Scheduler

    from engine_host.engine.vllm.live.scheduler import SteeredScheduler

    board = Board(0)
    os.environ.update(real_scheduler.environment([board]))
    plain = Subject(Scheduler, options.requests, options.blocks)
    steered = Subject(SteeredScheduler, options.requests, options.blocks)
    assert steered.scheduler._engine_host is not None, board.fault
    gc.collect()
    gc.freeze()  # as an engine core does
    runs: dict[str, tuple[list[float], list[float]]] = {"without": ([], []), "with": ([], [])}
    rounds = 10
    for n in range(rounds):
        pair = [("without", plain), ("with", steered)]
        for name, subject in pair if n % 2 else pair[::-1]:
            processor, clock = subject.steps(options.steps // rounds, options.gpu_ms / 1e3)
            runs[name][0].extend(processor)
            runs[name][1].extend(clock)
    hooks_s = in_hooks(steered, 200)
    publisher = steered.scheduler._engine_host._publisher
    assert not board.fault, board.fault
    print(f"{options.requests} requests, {options.blocks:,} blocks, usage {board.sample().usage:.2f}")  # type: ignore[union-attr]
    for title, which in (("processor", 0), ("step", 1)):
        for name, measured in runs.items():
            values = sorted(measured[which])
            print(
                f"  {title:9} {name:8} median {statistics.median(values) * 1e6:8,.0f} us   "
                f"mean {statistics.fmean(values) * 1e6:8,.0f} us   p99 {values[int(len(values) * 0.99)] * 1e6:8,.0f} us"
            )
        difference = statistics.median(runs["with"][which]) - statistics.median(runs["without"][which])
        print(f"  {title:9} costs    median {difference * 1e6:8,.1f} us a step")
    print(f"  hooks     costs    median {statistics.median(hooks_s) * 1e6:8,.1f} us a step")
    print(f"  publisher {publisher.looks} looks, {publisher.busy_s / max(1, publisher.looks) * 1e3:.2f} ms each")
    gc.unfreeze()
    board.close()


if __name__ == "__main__":
    main()
