"""The recommended K against a sweep, on the demo model on this machine.

One real host, a steady number of clients that stream one greedy answer after another. First what the snapshot says is
followed, as an operator would: what it asks for is run, what it recommends is set, until it calls the K in force right.
Then every K is run in turn, up and down again, and its tokens per second taken from the host's counters.

    python -m tests.benchmarks.recommended_k [--draft] [--synthetic 0.8,0.6,0.4] [--clients 8] [--json FILE]

Target: the K called right gives at least 95 % of the tokens per second of the best one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
import uuid
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx
import tomli_w

from engine_host.demo import model
from engine_host.demo.prompts import prompts
from tests.benchmarks import synthetic_on_cpu
from tests.e2e.real_host import RealHost, serving

K_MAX = 5
ROUNDS = 12
SETTLE_S = 3.0
"""After a change of K, before its figures count."""
ANSWER_TOKENS = 500


@dataclass
class Run:
    method: str
    clients: int
    k_max: int
    said: list[tuple[int, str]] = field(default_factory=list)
    """The K in force, and what the snapshot said of it, in turn."""
    right: int | None = None
    """The K that it called right."""
    speed_up: float | None = None
    """Estimated at that K."""
    per_position: list[float | None] = field(default_factory=list)
    choices: list[dict[str, Any]] = field(default_factory=list)
    tokens_per_s: dict[int, list[float]] = field(default_factory=dict)
    """By K, of the sweep's rounds."""

    def mean(self, k: int) -> float:
        return sum(self.tokens_per_s[k]) / len(self.tokens_per_s[k])


def profile(home: Path, *, with_draft: bool, rates: Sequence[float] | None) -> Path:
    if with_draft:
        speculative: dict[str, Any] = {
            "method": "draft_model",
            "model": str(model.prepare_draft()),
            "max_model_len": 2048,
        }
    else:
        speculative = {"method": "ngram", "prompt_lookup_max": 4, "prompt_lookup_min": 2}
    if rates is not None:
        speculative |= {"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": list(rates)}
    content = {
        "schema": 1,
        "engine": {
            "model": str(model.prepare()),
            "served_model_name": "smollm2",
            "max_model_len": 2048,
            "block_size": 32,
            "kv_cache_memory_bytes": 800_000_000,
            "max_num_seqs": 64,
            "enforce_eager": True,
            "speculative_config": {**speculative, "num_speculative_tokens": K_MAX if rates is None else len(rates)},
        },
    }
    path = home / "swept.toml"
    path.write_text(tomli_w.dumps(content))
    return path


async def stream_on(http: httpx.AsyncClient, url: str, number: int) -> None:
    """One answer after another until cancelled; the same ones in every run."""
    for prompt in prompts(seed=number):
        body = {
            **prompt.body,
            "model": "smollm2",
            "max_tokens": ANSWER_TOKENS,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
        }
        async with http.stream("POST", f"{url}{prompt.path}", json=body) as response:
            response.raise_for_status()
            async for _ in response.aiter_bytes():
                pass


def set_k(host: RealHost, k: int) -> None:
    answer = host.ask("dials.set", {"values": {"speculative_tokens": k}, "idempotency_key": uuid.uuid4().hex})
    if "error" in answer:
        raise SystemExit(f"K {k} was refused: {answer['error']}")


async def run_k(host: RealHost, k: int, seconds: float) -> float:
    """Tokens per second at K."""
    await asyncio.to_thread(set_k, host, k)
    await asyncio.sleep(SETTLE_S)
    before, began = host.status()["throughput"]["generation_tokens_total"], time.monotonic()
    await asyncio.sleep(seconds)
    after, ended = host.status()["throughput"]["generation_tokens_total"], time.monotonic()
    return float((after - before) / (ended - began))


async def follow(host: RealHost, run: Run) -> None:
    """Until a K is called right and nothing is asked for any more."""
    k = run.k_max
    await run_k(host, k, 20.0)
    for _ in range(ROUNDS):
        speculation = host.status()["speculation"]
        said = speculation["recommendation"]
        run.said.append((k, said["text"]))
        print(f"K {k}: {said['text']}", flush=True)
        if said["try_k"] is not None:
            await run_k(host, said["try_k"], said["try_s"])
            await run_k(host, k, SETTLE_S)
        elif said["k"] == k:
            run.right, run.speed_up = k, speculation["estimated_speedup"]
            run.per_position, run.choices = speculation["per_position"], said["choices"]
            return
        elif said["k"] is not None:
            k = said["k"]
            await run_k(host, k, 10.0)
        else:
            await run_k(host, k, 10.0)


async def measure(host: RealHost, run: Run, seconds: float) -> None:
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(
            httpx.AsyncClient(timeout=600, limits=httpx.Limits(max_connections=run.clients))
        )
        streams = [asyncio.create_task(stream_on(http, host.url, number)) for number in range(run.clients)]
        try:
            await asyncio.sleep(5.0)
            await follow(host, run)
            for k in [*range(run.k_max + 1), *reversed(range(run.k_max + 1))]:
                run.tokens_per_s.setdefault(k, []).append(await run_k(host, k, seconds))
            if failed := [stream for stream in streams if stream.done()]:
                failed[0].result()
        finally:
            for stream in streams:
                stream.cancel()
            await asyncio.gather(*streams, return_exceptions=True)


def report(run: Run) -> str:
    best = max(run.tokens_per_s, key=run.mean)
    lines = [f"{run.method}, {run.clients} clients", "", "| K | tokens/s up, down | of the best | forecast |"]
    lines.append("|---:|---|---:|---:|")
    forecast = {choice["k"]: choice["tokens_per_s"] for choice in run.choices}
    highest = max(forecast.values(), default=1.0)
    for k in sorted(run.tokens_per_s):
        rounds = ", ".join(f"{value:.1f}" for value in run.tokens_per_s[k])
        expected = f"{forecast[k] / highest:.2f}" if k in forecast else "–"
        lines.append(f"| {k} | {rounds} | {run.mean(k) / run.mean(best):.2f} | {expected} |")
    if run.right is None:
        return "\n".join([*lines, "", "no K was called right"])
    lines += [
        "",
        f"called right: K {run.right}, {run.mean(run.right) / run.mean(best):.3f} of the best (K {best}); estimated "
        f"speed-up {run.speed_up:.2f}, in the sweep {run.mean(run.right) / run.mean(0):.2f}",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draft", action="store_true", help="a draft model in place of n-gram drafts")
    parser.add_argument("--synthetic", help="accept by chance at these rates by position: 0.8,0.6,0.4")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=15.0, help="at each K, up and down")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rates = [float(rate) for rate in arguments.synthetic.split(",")] if arguments.synthetic else None
    method = f"{'draft model' if arguments.draft else 'n-gram'}, acceptance {arguments.synthetic or 'real'}"
    run = Run(method, arguments.clients, k_max=K_MAX if rates is None else len(rates))
    with (
        tempfile.TemporaryDirectory() as home,
        synthetic_on_cpu.offered(Path(home)),
        serving(Path(home), profile(Path(home), with_draft=arguments.draft, rates=rates)) as host,
    ):
        asyncio.run(measure(host, run, arguments.seconds))
    print(report(run))
    if arguments.json:
        arguments.json.write_text(json.dumps(asdict(run), indent=1))


if __name__ == "__main__":
    main()
