"""The imports of a start cost no garbage collection, then or later."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import gc
from engine_host.engine.vllm.imports import without_collections

collected = []
gc.callbacks.append(lambda phase, info: collected.append(info["generation"]))
with without_collections():
    kept = [[] for _ in range(500_000)]
during, frozen = len(collected), gc.get_freeze_count()
with without_collections():
    pass
print(during, frozen > 500_000, gc.isenabled(), gc.get_freeze_count() == frozen)
gc.disable()
with without_collections():
    pass
print(gc.isenabled())
"""


def test_nothing_is_collected_during_the_imports_and_what_they_made_is_left_alone_from_then_on() -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60)
    assert ended.stdout.split() == ["0", "True", "True", "True", "False"], ended.stderr
