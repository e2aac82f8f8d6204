"""What automatic throttling makes of an overload, on the demo model on this machine.

An engine whose KV cache holds a dozen and a half requests is asked for three times what it sustains, by clients that do
not wait for each other: once with `[throttle.auto]` off, once on, each on a fresh host. What it sustains is measured
first, by clients that do wait. Figures are the host's own counters and what the clients saw, the time at the gate
included.

    python -m tests.benchmarks.throttle_overload [--seconds 300] [--plot FILE.png] [--json FILE] [--dials NAME ...]
    python -m tests.benchmarks.throttle_overload --from FILE --plot FILE.png      what an earlier run wrote, again

Targets, on against off: preemptions at most a tenth, TTFT p95 of the admitted at most half, tokens/s at least 0.95;
every request answered or refused with 429; the cap gone 10 s after the load; at most 6 changes of direction a minute.
Exit 1 when one is missed. The plot needs matplotlib: `pip install -e .[bench]`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil
import tomli_w

from engine_host.demo import model
from tests.benchmarks.open_loop import MIXED, Clients, Outcome
from tests.e2e.real_host import RealHost, serving
from tests.unit.throttle.plant import direction_changes

KV_BYTES = 100_000_000
"""134 blocks of 32 tokens: a dozen and a half requests of this mix."""
WARM_S = 8.0
SUSTAINED_S = 30.0
"""How long the sustained rate is measured."""
SUSTAINED_CLIENTS = 20
"""As many as fill the KV cache: more would only preempt each other."""
LOOK_EVERY_S = 0.25
AFTERWARDS_S = 60.0
"""What requests under way get after the last was sent, and what the host is watched for its release."""


@dataclass(frozen=True)
class Look:
    """The host at one moment, seconds since the load began."""

    at: float
    kv: float | None
    running: int | None
    waiting: int | None
    held: int | None
    inflight: int
    cap: int | None
    preemptions: int
    tokens: int


@dataclass
class Run:
    auto: str
    seconds: float
    asked_per_s: float
    load_average: float = 0.0
    cpu_s: float = 0.0
    """Of the engine's worker during the load: other programs cost a run tokens/s, but few tokens a CPU second."""
    looks: list[Look] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    began: float = 0.0
    cut_off: int = 0
    """Still unanswered when the clients gave up."""
    events: list[str] = field(default_factory=list)

    def _during(self) -> tuple[Look, Look]:
        inside = [look for look in self.looks if 0 <= look.at <= self.seconds]
        return inside[0], inside[-1]

    @property
    def tokens_per_s(self) -> float:
        first, last = self._during()
        return (last.tokens - first.tokens) / (last.at - first.at)

    @property
    def preemptions(self) -> int:
        first, last = self._during()
        return last.preemptions - first.preemptions

    @property
    def answered(self) -> int:
        return sum(outcome.is_answered for outcome in self.outcomes)

    @property
    def refused(self) -> int:
        return sum(outcome.status == 429 for outcome in self.outcomes)

    @property
    def lost(self) -> list[Outcome]:
        """Neither answered nor refused, nor under way when the clients gave up."""
        return [o for o in self.outcomes if not o.is_answered and o.status != 429 and o.ended is not None]

    @property
    def ttft_s(self) -> list[float]:
        """Of those that got a first token while the load lasted: those still waiting would make it worse."""
        until = self.began + self.seconds
        return sorted(o.ttft_s for o in self.outcomes if o.ttft_s is not None and (o.first_token or until) <= until)

    def ttft_percentile_s(self, share: float) -> float:
        ttft = self.ttft_s
        return ttft[int(share * (len(ttft) - 1))]

    @property
    def direction_changes(self) -> int:
        return direction_changes([(look.at, look.cap) for look in self.looks if look.at <= self.seconds])

    @property
    def released_after_s(self) -> float | None:
        """From the moment that nothing was held any more after the load; 0 with no cap in force then; None: never."""
        after = [look for look in self.looks if look.at > self.seconds]
        gone = next((look.at for look in after if not look.held), None)
        released = next((look.at for look in after if look.cap is None), None)
        if gone is None or released is None:
            return None
        return max(0.0, released - gone)


def profile(home: Path, auto: str, kv_bytes: int, dials: Sequence[str]) -> Path:
    content: dict[str, Any] = {
        "schema": 1,
        "engine": {
            "model": str(model.prepare()),
            "served_model_name": "smollm2",
            "max_model_len": 1024,
            "block_size": 32,
            "kv_cache_memory_bytes": kv_bytes,
            "max_num_seqs": 64,
            "max_num_batched_tokens": 1024,
            "enforce_eager": True,
            "gpu_memory_utilization": 0.1,
        },
        "throttle": {"hold_queue": 64, "hold_deadline_s": 10.0, "auto": {"mode": auto, "dials": list(dials)}},
    }
    path = home / "choke.toml"
    path.write_text(tomli_w.dumps(content))
    return path


def look(host: RealHost, began: float) -> Look:
    now = host.status()
    return Look(
        at=time.monotonic() - began,
        kv=now["kv"]["usage"],
        running=now["queue"]["running"],
        waiting=now["queue"]["waiting"],
        held=now["queue"]["held"],
        inflight=now["throttle"]["inflight"],
        cap=now["throttle"]["max_inflight"],
        preemptions=now["queue"]["preemptions_total"],
        tokens=now["throughput"]["generation_tokens_total"],
    )


def cpu_seconds(host: RealHost) -> float:
    """Of the engine's worker, so far. The engine core beside it polls while it waits: its seconds say nothing."""
    spent = 0.0
    for process in host.children():
        with contextlib.suppress(psutil.Error):
            if "VLLM::Worker" in " ".join(process.cmdline()):
                times = process.cpu_times()
                spent += times.user + times.system
    return spent


async def sustained(url: str) -> float:
    """Requests a second."""
    clients = Clients(url, MIXED, seed=1)
    try:
        await clients.closed_loop(WARM_S, 4)
        began = time.monotonic()
        task = asyncio.create_task(clients.closed_loop(SUSTAINED_S, SUSTAINED_CLIENTS))
        await asyncio.sleep(SUSTAINED_S)
        ended = time.monotonic()
        done = [o for o in clients.outcomes if o.is_answered and began <= (o.ended or 0.0) <= ended]
        await task
        return len(done) / (ended - began)
    finally:
        await clients.close()


async def overload(host: RealHost, run: Run) -> None:
    clients = Clients(host.url, MIXED, seed=11)
    run.began, cpu_s = time.monotonic(), cpu_seconds(host)

    async def watch() -> None:
        while True:
            run.looks.append(await asyncio.to_thread(look, host, run.began))
            await asyncio.sleep(LOOK_EVERY_S)

    watching = asyncio.create_task(watch())
    try:
        await clients.open_loop(run.seconds, lambda at: run.asked_per_s)
        run.cpu_s = cpu_seconds(host) - cpu_s
        # Without a throttle the queue is longer than anybody would wait; with it, all is to be over within this.
        run.cut_off = await clients.finish(AFTERWARDS_S if run.auto == "on" else 1.0)
        if run.auto == "on":
            await asyncio.sleep(15.0)
    finally:
        watching.cancel()
        await asyncio.wait({watching})
        await clients.close()
    run.outcomes = clients.outcomes
    run.load_average = os.getloadavg()[0]
    run.events = [f"{event['kind']}: {event['text']}" for event in host.events() if "throttle" in event["kind"]]


def measure(auto: str, seconds: float, per_s: float | None, overload_factor: float, kv: int, dials: list[str]) -> Run:
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        with serving(home, profile(home, auto, kv, dials)) as host:
            if per_s is None:
                per_s = asyncio.run(sustained(host.url))
                print(f"sustained: {per_s:.2f} requests/s", flush=True)
            run = Run(auto, seconds, overload_factor * per_s)
            asyncio.run(overload(host, run))
    print(summary(run), flush=True)
    return run


def summary(run: Run) -> str:
    return (
        f"auto {run.auto}: {len(run.outcomes)} sent at {run.asked_per_s:.2f}/s, {run.answered} answered, "
        f"{run.refused} refused, {run.cut_off} given up, {len(run.lost)} lost; {run.tokens_per_s:.1f} tokens/s, "
        f"{per_cpu_second(run)[0]} a CPU second, {run.preemptions} preemptions, "
        f"TTFT p50 {run.ttft_percentile_s(0.5):.2f} s p95 {run.ttft_percentile_s(0.95):.2f} s; "
        f"{run.direction_changes} changes of direction in the worst minute, "
        f"released after {run.released_after_s} s; load average {run.load_average:.1f}"
    )


def per_cpu_second(*runs: Run) -> list[str]:
    return [f"{run.tokens_per_s * run.seconds / run.cpu_s:.1f}" if run.cpu_s else "–" for run in runs]


MISSED = "missed"


def table(off: Run, on: Run) -> str:
    """With `MISSED` in it where a target is."""

    def verdict(is_met: bool) -> str:
        return "met" if is_met else MISSED

    released = on.released_after_s
    preempted, tokens = on.preemptions / max(off.preemptions, 1), on.tokens_per_s / off.tokens_per_s
    ttft = on.ttft_percentile_s(0.95) / off.ttft_percentile_s(0.95)
    unanswered = len(on.lost) + on.cut_off
    rows = [
        ("requests sent", len(off.outcomes), len(on.outcomes), "", ""),
        ("answered", off.answered, on.answered, "", ""),
        ("refused with 429", off.refused, on.refused, "", ""),
        ("preemptions", off.preemptions, on.preemptions, f"{preempted:.2f}", f"<= 0.10: {verdict(preempted <= 0.1)}"),
        (
            "TTFT p95, hold included",
            f"{off.ttft_percentile_s(0.95):.1f} s",
            f"{on.ttft_percentile_s(0.95):.1f} s",
            f"{ttft:.2f}",
            f"<= 0.50: {verdict(ttft <= 0.5)}",
        ),
        (
            "output tokens/s",
            f"{off.tokens_per_s:.1f}",
            f"{on.tokens_per_s:.1f}",
            f"{tokens:.2f}",
            f">= 0.95: {verdict(tokens >= 0.95)}",
        ),
        ("output tokens a CPU second of the worker", *per_cpu_second(off, on), "", ""),
        ("neither answered nor refused", off.cut_off + len(off.lost), unanswered, "", f"0: {verdict(unanswered == 0)}"),
        (
            "changes of direction, worst minute",
            "–",
            on.direction_changes,
            "",
            f"<= 6: {verdict(on.direction_changes <= 6)}",
        ),
        (
            "cap gone after the load",
            "–",
            "never" if released is None else f"{released:.1f} s",
            "",
            f"<= 10 s: {verdict(released is not None and released <= 10)}",
        ),
    ]
    head = ["| measure | auto off | auto on | ratio | target |", "|---|---:|---:|---:|---|"]
    return "\n".join(head + ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows])


def plot(off: Run, on: Run, path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, (kv, flight, preempted, ttft) = pyplot.subplots(4, 1, figsize=(9, 11), sharex=True, layout="constrained")
    for run, colour in ((off, "tab:orange"), (on, "tab:blue")):
        times = [one.at for one in run.looks]
        label = f"auto {run.auto}"
        kv.plot(times, [100 * (one.kv or 0.0) for one in run.looks], color=colour, lw=0.8, label=label)
        preempted.plot(
            times, [one.preemptions - run.looks[0].preemptions for one in run.looks], color=colour, label=label
        )
        seen = [(o.sent - run.began, o.ttft_s) for o in run.outcomes if o.ttft_s is not None]
        ttft.scatter([at for at, _ in seen], [s for _, s in seen], s=5, color=colour, label=label)
        flight.plot(times, [one.running for one in run.looks], color=colour, lw=0.8, label=f"running, {label}")
    times = [one.at for one in on.looks]
    flight.step(times, [one.cap if one.cap is not None else float("nan") for one in on.looks], "k-", label="cap")
    flight.plot(times, [one.held for one in on.looks], color="tab:blue", ls=":", lw=0.8, label="held at the gate")
    for axes, name in (
        (kv, "KV cache, %"),
        (flight, "requests"),
        (preempted, "preemptions so far"),
        (ttft, "time to first token, s"),
    ):
        axes.set_ylabel(name)
        axes.legend(loc="upper right", fontsize=8)
        axes.grid(alpha=0.3)
    ttft.set_yscale("log")
    ttft.set_xlabel("seconds; the load lasts until the dashed line")
    for axes in (kv, flight, preempted, ttft):
        axes.axvline(on.seconds, color="k", ls="--", lw=0.6)
    figure.suptitle(f"The same overload of {on.asked_per_s:.1f} requests/s without and with automatic throttling")
    figure.savefig(path, dpi=80)


def saved(path: Path) -> dict[str, Run]:
    runs: dict[str, Run] = {}
    for auto, values in json.loads(path.read_text()).items():
        values["looks"] = [Look(**one) for one in values["looks"]]
        values["outcomes"] = [Outcome(**one) for one in values["outcomes"]]
        runs[auto] = Run(**values)
    return runs


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--overload", type=float, default=3.0, help="times the sustained rate")
    parser.add_argument("--sustained", type=float, help="requests/s, if known: it is not measured then")
    parser.add_argument("--kv-bytes", type=int, default=KV_BYTES)
    parser.add_argument("--dials", nargs="*", default=["max_active_seqs"], help="that it may turn down too")
    parser.add_argument("--only", choices=("off", "on"), help="one of the two runs, without a verdict")
    parser.add_argument("--from", dest="saved", type=Path, help="no run: what `--json` wrote")
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    runs: dict[str, Run] = {} if arguments.saved is None else saved(arguments.saved)
    rate: float | None = arguments.sustained
    wanted = ("off", "on") if arguments.only is None else (arguments.only,)
    for auto in wanted if arguments.saved is None else ():
        runs[auto] = measure(
            auto,
            arguments.seconds,
            rate,
            arguments.overload,
            arguments.kv_bytes,
            arguments.dials if auto == "on" else [],
        )
        rate = runs[auto].asked_per_s / arguments.overload
        if arguments.json:
            arguments.json.write_text(json.dumps({name: asdict(run) for name, run in runs.items()}))
    for run in runs.values():
        print(summary(run), *run.events, sep="\n")
    if len(runs) < 2:
        return 0
    told = table(runs["off"], runs["on"])
    print(told)
    if arguments.plot:
        plot(runs["off"], runs["on"], arguments.plot)
    return int(MISSED in told)


if __name__ == "__main__":
    sys.exit(main())
