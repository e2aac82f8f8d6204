from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from .harness import Bench, running_server


@pytest.fixture
def short_dir(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory with a path short enough for a socket; pytest's own may not be. Its `run` is where sockets go."""
    with tempfile.TemporaryDirectory(prefix="ctl-", dir="/tmp") as made:
        monkeypatch.setenv("VLLM_CONSOLE_RUNTIME_DIR", f"{made}/run")
        yield Path(made)


@pytest.fixture
async def bench(short_dir: Path) -> AsyncIterator[Bench]:
    async with running_server(short_dir) as running:
        yield running
