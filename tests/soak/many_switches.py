"""Switches in a row on one real host under load: what grows, and whether any request failed.

    python -m tests.soak.many_switches --switches 20

Prints a table and ends with 1 when the host's memory has grown by more than 5% or it holds on to a descriptor, thread,
process or shared-memory segment. The first four switches are warm-up: each tier has then been there and back once.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import httpx
import psutil

from engine_host.demo.model import prepare
from tests.e2e.client import ask
from tests.e2e.conftest import PROFILES
from tests.e2e.real_host import RealHost, serving, until

WARM_UP = 4
CLIENTS = 4
GROWTH = 1.05


@dataclass(frozen=True)
class Held:
    """What the host process holds while it serves."""

    memory_mb: float
    """Proportional set size."""
    descriptors: int
    threads: int
    processes: int
    """Children and theirs."""
    shared_memory: int
    """Segments on the machine."""


def held_by(host: RealHost) -> Held:
    process = psutil.Process(host.status()["host"]["pid"])
    return Held(
        memory_mb=process.memory_full_info().pss / 1e6,
        descriptors=process.num_fds(),
        threads=process.num_threads(),
        processes=len(process.children(recursive=True)),
        shared_memory=len(list(Path("/dev/shm").iterdir())),
    )


async def load(http: httpx.AsyncClient, url: str, number: int, flows: asyncio.Event, failed: list[str]) -> None:
    body = {"prompt": f"Tale {number}: once upon a time", "max_tokens": 300, "ignore_eos": True, "stream": True}
    while await flows.wait():
        seen = await ask(http, url, "story", "/v1/completions", body)
        if seen.status != 200 or seen.error or seen.usage["completion_tokens"] != 300:
            failed.append(f"{seen.status} {seen.error} {seen.usage}")


async def run(host: RealHost, switches: int) -> tuple[list[Held], list[str]]:
    failed, seen, flows = list[str](), list[Held](), asyncio.Event()
    async with httpx.AsyncClient(timeout=300) as http:
        streams = [asyncio.create_task(load(http, host.url, n, flows, failed)) for n in range(CLIENTS)]
        for number in range(switches):
            name = "drafts" if number % 2 == 0 else "a"
            tier = "overlap" if number // 2 % 2 else "reload"
            flows.set()
            await asyncio.to_thread(until, lambda: host.status()["queue"]["running"] == CLIENTS, 60, "all stream")
            outcome = await asyncio.to_thread(host.switch, name, "--tier", tier)
            if outcome.exit_code:
                failed.append(f"switch {number + 1}: {outcome.stderr}")
            # A retired engine's app lives on until the last answer through it is written.
            flows.clear()
            await asyncio.to_thread(until, lambda: host.status()["queue"]["running"] == 0, 120, "all have ended")
            await asyncio.sleep(3.0)
            seen.append(await asyncio.to_thread(held_by, host))
            figures = "  ".join(f"{key} {value:g}" for key, value in asdict(seen[-1]).items())
            print(f"{number + 1:3} {tier:8} {outcome.result.get('took_s', 0):6.1f} s  {figures}", flush=True)
        for stream in streams:
            stream.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*streams)
    return seen, failed


def verdict(seen: list[Held], failed: list[str]) -> list[str]:
    """What is wrong; empty when nothing is. The profiles hold different amounts, so two neighbours are compared at each
    end. A connection may be open or closed when we look; what leaks never gets back to where it was."""
    wrong = [f"failed: {text}" for text in failed[:5]]
    first, last = (max(held.memory_mb for held in pair) for pair in (seen[WARM_UP - 2 : WARM_UP], seen[-2:]))
    if last > GROWTH * first:
        wrong.append(f"memory grew by {last / first - 1:.1%}")
    for key in ("descriptors", "threads", "processes", "shared_memory"):
        before, after = ([getattr(held, key) for held in some] for some in (seen[:WARM_UP], seen[-WARM_UP:]))
        if min(after) > max(before):
            wrong.append(f"{key}: {before} -> {after}")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--switches", type=int, default=20)
    arguments = parser.parse_args()
    os.environ["VLLM_CONSOLE_TEST_MODEL"] = str(prepare())
    os.environ["VLLM_CONSOLE_TEST_BROKEN_MODEL"] = "not-used"
    with (
        tempfile.TemporaryDirectory() as home,
        serving(Path(home), PROFILES / "a.toml", f"--profiles-dir={PROFILES}") as host,
    ):
        wrong = verdict(*asyncio.run(run(host, max(2 * WARM_UP, arguments.switches))))
    print("\n".join(wrong) or "nothing grew, nothing failed")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
