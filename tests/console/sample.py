"""Fixed values for the console's tests: a healthy GPU node at a fixed moment, and variations of it."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from console.model import SERIES
from engine_host.protocol.events import Event, Severity
from engine_host.protocol.methods import Hello, History, ProtocolRange, Role
from engine_host.protocol.snapshot import (
    Blocks,
    Engine,
    Failure,
    Gpu,
    GpuProcess,
    Host,
    Kv,
    Latency,
    Percentiles,
    PrefixCache,
    ProfileRef,
    Queue,
    Snapshot,
    State,
    Throttle,
    Throughput,
)
from engine_host.protocol.speculation import Speculation

AT = 1_793_000_000.0
"""The fixed moment, Unix time."""

GIB = 1 << 30


def percentiles(p50: float, n: int) -> Percentiles:
    return Percentiles(n=n, p50_s=p50, p95_s=p50 * 3.5, p99_s=p50 * 6.6)


def windows(p50: float, n: int) -> dict[str, Percentiles]:
    return {
        "10s": percentiles(p50 * 1.1, n // 6),
        "1m": percentiles(p50, n),
        "5m": percentiles(p50 * 0.9, n * 5),
    }


def serving(**changes: Any) -> Snapshot:
    """A 72B model under load on one H200."""
    whole = Snapshot(
        host=Host(
            name="gpu-7",
            pid=4242,
            boot_id="boot-a",
            version="0.1.0",
            started_at=AT - 274_320,
            uptime_s=274_320.0,
            http="127.0.0.1:8000",
            cpu_usage=0.231,
            load_1m=3.42,
            memory_used_bytes=211 * GIB,
            memory_total_bytes=512 * GIB,
            process_memory_bytes=18 * GIB,
        ),
        profile=ProfileRef(name="latency", digest="4f1c2a90", path="/etc/vllm/latency.toml"),
        state=State.SERVING,
        state_since=AT - 4_321,
        state_version=7,
        engine=Engine(
            vllm_version="0.32.0",
            model="Qwen/Qwen2.5-72B-Instruct",
            generation=2,
            core_pids=[4300],
            max_model_len_tokens=32_768,
            uptime_s=4_321.0,
            start_took_s=84.0,
            last_step_age_s=0.02,
        ),
        kv=Kv(
            usage=0.6825,
            blocks=Blocks(total=60_412, active=41_231),
            block_size=16,
            capacity_tokens=966_592,
        ),
        queue=Queue(running=37, waiting=12, held=0, oldest_wait_s=1.8, preemptions_per_s=0.0, window_s=10.0),
        speculation=Speculation(
            window_s=60.0,
            method="ngram",
            acceptance_rate=0.712,
            mean_acceptance_length=3.93,
            per_position=[0.88, 0.79, 0.70, 0.61, 0.55],
            k=5,
            k_max=5,
            drafted_per_s=2_730.0,
            accepted_per_s=1_944.0,
        ),
        throughput=Throughput(
            window_s=10.0, prompt_tokens_per_s=9_830.0, generation_tokens_per_s=2_140.0, requests_per_s=6.87
        ),
        latency=Latency(
            ttft=windows(0.182, 412), itl=windows(0.0094, 128_312), e2e=windows(3.21, 409), queue=windows(0.0311, 412)
        ),
        prefix_cache=PrefixCache(window_s=60.0, enabled=True, hit_rate=0.412, queried_tokens=589_200),
        throttle=Throttle(inflight=49, admitted_total=81_233),
        gpus=[
            Gpu(
                index=0,
                name="NVIDIA H200",
                utilization=0.97,
                memory_used_bytes=131 * GIB,
                memory_total_bytes=141 * GIB,
                power_w=612.0,
                temperature_c=61.0,
                processes=[
                    GpuProcess(pid=4300, name="VLLM::EngineCore", memory_bytes=129 * GIB, is_ours=True),
                    GpuProcess(pid=991, name="python3", memory_bytes=2 * GIB),
                ],
            )
        ],
        at=AT,
        age_s=0.1,
        seq=99,
    )
    return msgspec.structs.replace(whole, **changes)


def idle_cpu(**changes: Any) -> Snapshot:
    """No GPU, no speculation, nothing asked yet: most values unknown."""
    base = serving()
    quiet = msgspec.structs.replace(
        base,
        kv=msgspec.structs.replace(base.kv, usage=0.0, blocks=Blocks(total=67, active=0)),
        queue=Queue(running=0, waiting=0, held=0),
        speculation=Speculation(),
        throughput=Throughput(),
        latency=Latency(),
        prefix_cache=PrefixCache(),
        throttle=Throttle(),
        gpus=[],
    )
    return msgspec.structs.replace(quiet, **changes)


def starting() -> Snapshot:
    return idle_cpu(
        state=State.STARTING,
        state_since=AT - 24,
        state_version=1,
        kv=Kv(),
        queue=Queue(),
        engine=Engine(
            vllm_version="0.32.0",
            model="Qwen/Qwen2.5-72B-Instruct",
            generation=1,
            phase="loading weights",
            phase_elapsed_s=12.0,
            start_elapsed_s=24.0,
            start_expected_s=84.0,
        ),
    )


FAILURE = Failure(
    at=AT - 12,
    reason="the KV cache is too small for max_model_len 32768: 10.0 GiB needed, 6.21 GiB available",
    lines=[
        "(EngineCore pid=4300) ERROR EngineCore failed to start.",
        "(EngineCore pid=4300) ERROR Traceback (most recent call last):",
        "(EngineCore pid=4300) ERROR ValueError: To serve at least one request with the models's max seq len (32768), "
        "10.0 GiB KV cache is needed, which is larger than the available KV cache memory (6.21 GiB).",
    ],
)


def dead() -> Snapshot:
    return idle_cpu(
        state=State.DEAD,
        state_since=AT - 12,
        state_version=9,
        kv=Kv(),
        queue=Queue(),
        engine=Engine(
            vllm_version="0.32.0",
            model="Qwen/Qwen2.5-72B-Instruct",
            generation=4,
            crashes_in_window=3,
            crash_limit=3,
            failure=FAILURE,
        ),
    )


def recovering() -> Snapshot:
    base = dead()
    engine = msgspec.structs.replace(base.engine, crashes_in_window=1, restart_in_s=4.0)
    return msgspec.structs.replace(base, state=State.RECOVERING, engine=engine)


def draining() -> Snapshot:
    base = serving()
    phase = "draining: 49 requests left, 42 s at most"
    engine = msgspec.structs.replace(base.engine, phase=phase, phase_elapsed_s=8.0)
    return serving(state=State.DRAINING, state_since=AT - 8, engine=engine)


def paused() -> Snapshot:
    base = serving()
    return serving(
        state=State.PAUSED,
        state_since=AT - 125,
        queue=msgspec.structs.replace(base.queue, held=12, running=0, waiting=0),
        throttle=msgspec.structs.replace(
            base.throttle,
            auto="on",
            max_inflight=16,
            paused=True,
            limited_by=["max_inflight", "paused"],
            set_by={"max_inflight": "ops", "paused": "ops"},
        ),
    )


def hung() -> Snapshot:
    base = serving()
    return serving(
        queue=msgspec.structs.replace(base.queue, stalled=True, stalled_reason="hung"),
        engine=msgspec.structs.replace(base.engine, last_step_age_s=42.0),
    )


def hello(role: Role = Role.ADMIN, boot_id: str = "boot-a", event_seq: int = 6, **changes: Any) -> Hello:
    whole = Hello(
        protocol=ProtocolRange(min=1, max=1),
        host_version="0.1.0",
        vllm_version="0.32.0",
        boot_id=boot_id,
        capabilities=[],
        role=role,
        uid=1000,
        login="ops",
        state=State.SERVING,
        state_version=7,
        seq=99,
        event_seq=event_seq,
    )
    return msgspec.structs.replace(whole, **changes)


def events() -> list[Event]:
    said = [
        (900.0, "state.starting", Severity.INFO, "engine 1 starts: latency", "host"),
        (816.0, "state.serving", Severity.INFO, "engine 1 serves after 84.0 s", "host"),
        (412.0, "engine.died", Severity.ERROR, "engine 1 died: CUDA error: an illegal memory access", "host"),
        (411.0, "state.recovering", Severity.WARNING, "restarting in 2 s (crash 1 of 3 in 5 min)", "host"),
        (320.0, "state.serving", Severity.INFO, "engine 2 serves after 84.2 s", "host"),
        (12.0, "action.engine.restart", Severity.INFO, "restart refused: reason is missing", "maria"),
    ]
    return [
        Event(seq=seq, at=AT - ago, kind=kind, severity=severity, text=text, who=who)
        for seq, (ago, kind, severity, text, who) in enumerate(said, start=1)
    ]


def history(end_at: float = AT - 1) -> History:
    """Five minutes of smooth curves, so that a chart in a recorded screen is recognisable."""
    shapes = {
        "kv.usage": (0.5, 0.2),
        "queue.running": (30.0, 8.0),
        "queue.waiting": (8.0, 7.0),
        "throughput.generation_tokens_per_s": (1_900.0, 400.0),
        "throughput.prompt_tokens_per_s": (8_000.0, 3_000.0),
        "speculation.acceptance_rate": (0.65, 0.1),
    }
    return History(
        end_at=end_at,
        step_s=1.0,
        series={name: [shapes[name][0] + shapes[name][1] * math.sin(i / 31) for i in range(299)] for name in SERIES},
    )
