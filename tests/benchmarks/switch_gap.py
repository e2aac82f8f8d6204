"""What a streaming client sees of a switch, tier by tier, on the demo model on this machine.

One real host; eight clients stream one long answer after another. Each round switches once live, once by overlap and
once by reload. A gap is the longest silence that any of the streams saw while the switch was under way; beside it
stands the longest silence just before the switch, which is what the machine does by itself.

    python -m tests.benchmarks.switch_gap --rounds 3 [--json FILE]

Targets: live under 50 ms more than before the switch, overlap under 1 s, reload at most engine start + 2 s.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

import httpx

from engine_host.demo.model import prepare
from tests.e2e.conftest import PROFILES
from tests.e2e.real_host import RealHost, serving

CLIENTS = 8
ANSWER_TOKENS = 400
QUIET_S = 10.0
"""How long the streams are watched before each switch."""

LIVE, OVERLAP, RELOAD = "live", "overlap", "reload"
ROUND = ((RELOAD, "drafts"), (LIVE, "patient"), (OVERLAP, "a"))
"""Tier and profile: from a, there and back."""


@dataclass
class Silences:
    """When each stream last got something, and how long its silences were."""

    seen: list[tuple[float, float]] = field(default_factory=list)
    """(end of the silence, its length) in seconds of the monotonic clock."""
    failed: list[str] = field(default_factory=list)

    def longest(self, since: float, until: float) -> float:
        """Of those that began or ended between the two."""
        return max((length for end, length in self.seen if since <= end and end - length <= until), default=0.0)

    def longest_begun(self, since: float, until: float) -> float:
        """Of those that began between the two: what a switch before `since` caused is left out."""
        return max((length for end, length in self.seen if since <= end - length <= until), default=0.0)


@dataclass(frozen=True)
class Row:
    tier: str
    before_s: float
    """Longest silence in the ten seconds before."""
    during_s: float
    """Longest silence that began or ended during the switch."""
    host_gap_s: float | None
    """What the host says of it."""
    start_s: float | None
    """Of the new engine, with its preparation."""
    took_s: float
    carried: int

    @property
    def target_s(self) -> float:
        if self.tier == LIVE:
            return self.before_s + 0.05
        return 1.0 if self.tier == OVERLAP else (self.start_s or 0.0) + 2.0


async def stream_on(http: httpx.AsyncClient, url: str, number: int, silences: Silences) -> None:
    """One long answer after another until cancelled."""
    story = 0
    while True:
        story += 1
        body = {
            "model": "smollm2",
            "prompt": f"Tale {number}.{story}: once upon a time",
            "max_tokens": ANSWER_TOKENS,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
        }
        last: float | None = None  # the time to a first token is no silence
        async with http.stream("POST", f"{url}/v1/completions", json=body) as response:
            if response.status_code != 200:
                silences.failed.append((await response.aread()).decode())
                continue
            async for line in response.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                if '"error"' in line:
                    silences.failed.append(line)
                now = time.monotonic()
                if last is not None:
                    silences.seen.append((now, now - last))
                last = now


async def one_switch(host: RealHost, silences: Silences, tier: str, name: str) -> Row:
    await asyncio.sleep(QUIET_S)
    began = time.monotonic()
    outcome = await asyncio.to_thread(host.switch, name, *(() if tier == LIVE else ("--tier", tier)))
    ended = time.monotonic()
    await asyncio.sleep(5.0)  # the silence of the release ends with the first token after it
    if outcome.exit_code:
        raise SystemExit(f"the switch to {name} failed: {outcome.stderr}")
    took = {phase["name"]: phase["took_s"] for phase in outcome.result["phases"]}
    return Row(
        tier=tier,
        before_s=silences.longest_begun(began - QUIET_S, began),
        during_s=silences.longest(began, ended),
        host_gap_s=outcome.result["gap_s"],
        start_s=took["start"] + took.get("prepare", 0.0) if "start" in took else None,
        took_s=outcome.result["took_s"],
        carried=outcome.result["carried"],
    )


async def measure(host: RealHost, rounds: int) -> list[Row]:
    silences, rows = Silences(), list[Row]()
    async with httpx.AsyncClient(timeout=300) as http:
        streams = [asyncio.create_task(stream_on(http, host.url, n, silences)) for n in range(CLIENTS)]
        try:
            for _ in range(rounds):
                rows += [await one_switch(host, silences, tier, name) for tier, name in ROUND]
        finally:
            for stream in streams:
                stream.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.gather(*streams)
    if silences.failed:
        raise SystemExit(f"{len(silences.failed)} requests failed: {silences.failed[0]}")
    return rows


def table(rows: list[Row]) -> str:
    lines = ["| tier | silence before | during the switch | target | engine start | whole switch | carried |"]
    lines.append("|---|---:|---:|---:|---:|---:|---:|")
    for tier in (LIVE, OVERLAP, RELOAD):
        of_tier = [row for row in rows if row.tier == tier]

        def median(key: str, of_tier: list[Row] = of_tier) -> str:
            figures = [value for row in of_tier if (value := getattr(row, key)) is not None]
            return f"{statistics.median(figures):.2f} s" if figures else "–"

        met = sum(row.during_s <= row.target_s for row in of_tier)
        lines.append(
            f"| {tier} | {median('before_s')} | {median('during_s')} | {median('target_s')}: {met} of {len(of_tier)} "
            f"| {median('start_s')} | {median('took_s')} | {sum(row.carried for row in of_tier)} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    os.environ["VLLM_CONSOLE_TEST_MODEL"] = str(prepare())
    os.environ["VLLM_CONSOLE_TEST_BROKEN_MODEL"] = "not-used"
    with (
        tempfile.TemporaryDirectory() as home,
        serving(Path(home), PROFILES / "a.toml", f"--profiles-dir={PROFILES}") as host,
    ):
        for _, name in ROUND:  # so that no round pays for the first look at a profile
            host.console("switch", name, "--dry-run", timeout_s=120)
        rows = asyncio.run(measure(host, arguments.rounds))
    print(table(rows))
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))


if __name__ == "__main__":
    main()
