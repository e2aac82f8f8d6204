"""One real engine serves a whole module of tests: a start costs more than all its questions."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine_host.demo.model import prepare

from .real_host import RealHost, serving

HERE = Path(__file__).parent
PROFILES = HERE / "profiles"
"""For switches: `a`, and those that differ from it or fail in one way each."""


@pytest.fixture(scope="session", autouse=True)
def interruptible() -> None:
    """A shell's background job ignores Ctrl-C, and so would every host that its tests start."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def model() -> None:
    """The demo model, from the cache if it is there."""
    os.environ["VLLM_CONSOLE_TEST_MODEL"] = str(prepare())


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory, model: None) -> Iterator[RealHost]:
    with serving(tmp_path_factory.mktemp("host"), HERE / "engine.toml") as real:
        yield real
