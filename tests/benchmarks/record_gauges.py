"""Records what a real engine, unthrottled, reports under four loads, for the tests of the automatic throttle.

    python -m tests.benchmarks.record_gauges [--into tests/unit/throttle/recordings]

The engine is the one of `throttle_overload`. A file has a row for each tenth of a second with steps in it: counts of
the rows' steps added up, gauges as the last of them had it. At the end of `step` all clients hang up at once.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.benchmarks import throttle_overload
from tests.benchmarks.open_loop import MIXED, SHORT_ANSWERS, Clients, Mix
from tests.benchmarks.recorded_host import Step, read
from tests.e2e.real_host import RealHost

ROW_S = 0.1
COLUMNS = (*Step._fields[:9], "ttft_s")
AFTER_S = 6.0
"""Recorded on after the clients have hung up."""


def condensed(steps: list[Step], began: float) -> list[Step]:
    rows: list[Step] = []
    for step in steps:
        at = round(step.at - began, 2)
        last = rows[-1] if rows else None
        if last is None or at - last.at >= ROW_S or step.running is None:
            rows.append(step._replace(at=at))
            continue
        rows[-1] = step._replace(
            at=last.at,
            prompt_tokens=last.prompt_tokens + step.prompt_tokens,
            generation_tokens=last.generation_tokens + step.generation_tokens,
            preemptions=last.preemptions + step.preemptions,
            finished=last.finished + step.finished,
            ttft_s=last.ttft_s + step.ttft_s,
        )
    return rows


def write(path: Path, rows: list[Step]) -> None:
    with path.open("w", newline="") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(COLUMNS)
        for row in rows:
            out.writerow([*row[:9], " ".join(f"{sample:.2f}" for sample in row.ttft_s)])


class Recorder:
    def __init__(self, host: RealHost, steps: Path, into: Path) -> None:
        self._host, self._steps, self._into = host, steps, into

    async def sustained(self, mix: Mix, clients: int, seconds: float) -> float:
        """Requests a second of clients that wait for their answers."""
        load = Clients(self._host.url, mix, seed=5)
        began = time.monotonic()
        task = asyncio.create_task(load.closed_loop(seconds, clients))
        await asyncio.sleep(seconds)
        rate = sum(outcome.is_answered for outcome in load.outcomes) / (time.monotonic() - began)
        await task
        await load.close()
        return rate

    async def record(self, name: str, mix: Mix, seconds: float, rate: Callable[[float], float]) -> None:
        load = Clients(self._host.url, mix, seed=7)
        began = time.monotonic()
        await load.open_loop(seconds, rate)
        await load.finish(0.0)
        await load.close()
        await asyncio.sleep(AFTER_S)
        rows = condensed([step for step in read(self._steps) if began <= step.at], began)
        write(self._into / f"{name}.csv", rows)
        preempted = sum(row.preemptions for row in rows)
        print(f"{name}: {len(load.outcomes)} requests, {len(rows)} rows, {preempted} preemptions", flush=True)


async def record_all(recorder: Recorder) -> None:
    await recorder.sustained(MIXED, 4, 6.0)
    mixed = await recorder.sustained(MIXED, 12, 20.0)
    print(f"sustained: {mixed:.2f}/s", flush=True)
    await recorder.record("step", MIXED, 50.0, lambda at: (3.0 if at > 12 else 0.4) * mixed)
    await recorder.record("spike", MIXED, 45.0, lambda at: 40.0 if 10 < at < 11 else 0.3 * mixed)
    await recorder.record("ramp", MIXED, 60.0, lambda at: (0.3 + 2.2 * at / 60) * mixed)
    short = await recorder.sustained(SHORT_ANSWERS, 12, 12.0)
    await recorder.record("prefill", SHORT_ANSWERS, 30.0, lambda at: (2.5 if at > 8 else 0.4) * short)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--into", type=Path, default=Path("tests/unit/throttle/recordings"))
    into: Path = parser.parse_args().into
    into.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        steps = home / "steps.jsonl"
        profile = throttle_overload.profile(home, "off", throttle_overload.KV_BYTES, [])
        host = RealHost(home, profile, program=("-m", "tests.benchmarks.recorded_host", str(steps))).start()
        try:
            host.wait_for_state("serving")
            asyncio.run(record_all(Recorder(host, steps, into)))
        finally:
            host.end()


if __name__ == "__main__":
    main()
