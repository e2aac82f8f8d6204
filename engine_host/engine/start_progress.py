"""What an engine is doing while it starts, read from vLLM's own log.

vLLM has no progress interface: building an `AsyncLLM` returns after 20 to 120 s or raises. Its log lines are
stable enough to name phases; a line that a later release words differently only keeps the previous phase on screen.
"""

from __future__ import annotations

import re

_PHASES: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), phase)
    for pattern, phase in (
        (r"Resolved architecture|Using max model len", "checking the configuration"),
        (r"Initializing a V1 LLM engine", "starting the engine process"),
        (r"rank \d+ in world size|world_size=", "starting the workers"),
        (r"Starting to load model|Loading model from scratch|Loading safetensors", "loading weights"),
        (r"Loading weights took|Model loading took", "weights loaded"),
        (r"Loading drafter model", "loading the draft"),
        (r"Warming up model|torch\.compile takes|Dynamo bytecode|Compiling a graph", "compiling"),
        (r"profiling/warmup run|Warming up done|Available KV cache memory", "measuring memory"),
        (r"KV cache size|KV cache for|num_gpu_blocks", "allocating the KV cache"),
        (r"Captur\w+ (?:CUDA|cuda)\s?graph", "capturing CUDA graphs"),
        (r"init engine .* took|Supported tasks", "starting the API"),
    )
)

_PERCENT = re.compile(r"Loading safetensors checkpoint shards:\s+(\d+)% Completed")


def phase_of(line: str) -> str | None:
    """The phase that a log line announces, None for any other line.

    >>> phase_of("(Worker pid=9) INFO 11-29 23:46:10 [x.py:68] Starting to load model /models/a...")
    'loading weights'
    """
    if match := _PERCENT.search(line):
        return f"loading weights {match[1]} %"
    for pattern, phase in _PHASES:
        if pattern.search(line):
            return phase
    return None
