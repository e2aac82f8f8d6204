"""One real engine serves a whole module of tests, or several: a start costs more than all its questions."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from engine_host.demo.model import prepare

from . import paced_steps
from .real_host import RealHost, serving, took

HERE = Path(__file__).parent
PROFILES = HERE / "profiles"
"""For switches: `a`, and those that differ from it or fail in one way each."""
SMALL = HERE / "small"
"""With a small cache: `engine`, those that differ from it in what a running engine takes, and two of their own."""


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    cores, load = len(os.sched_getaffinity(0)), os.getloadavg()[1]
    times = [
        f"{what} {statistics.median(seconds):.2f} s ({max(seconds):.2f} at most, {len(seconds)} of them)"
        for what, seconds in took.items()
        if seconds
    ]
    terminalreporter.write_line(f"{cores} of {os.cpu_count()} cores, load {load:.1f} of 5 minutes; {', '.join(times)}")


@pytest.fixture(scope="session", autouse=True)
def model() -> None:
    """The demo model, from the cache if it is there."""
    os.environ["VLLM_CONSOLE_TEST_MODEL"] = str(prepare())


@pytest.fixture(scope="session", autouse=True)
def pace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Every engine can be slowed down."""
    with paced_steps.offered(tmp_path_factory.mktemp("plugin")):
        yield


Slow = Callable[[float], AbstractContextManager[None]]


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory, pace: None) -> Iterator[Slow]:
    """For an engine of this very process, `RealHost.slow`."""
    file = tmp_path_factory.mktemp("pace") / "pace"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(paced_steps.ENVIRONMENT, str(file))
        yield lambda step_s: paced_steps.slow(file, step_s)


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory, model: None, pace: None) -> Iterator[RealHost]:
    with serving(tmp_path_factory.mktemp("host"), SMALL / "engine.toml") as real:
        yield real


@pytest.fixture(scope="session")
def steered(tmp_path_factory: pytest.TempPathFactory, model: None, pace: None) -> Iterator[RealHost]:
    """One host for all tests that steer a running engine. They begin with `RealHost.begin_on`."""
    with serving(tmp_path_factory.mktemp("steered"), SMALL / "engine.toml") as real:
        yield real
