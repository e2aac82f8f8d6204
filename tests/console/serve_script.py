"""Runs a scripted host as a process of its own: `python -m tests.console.serve_script SOCKET [SCENE]`.

For looking at the console by eye and for the cost benchmark. `live` changes every figure every second, so that the
bytes and the processor time measured are those of a busy host.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from engine_host.protocol.methods import History, KvMap, KvMapParams, RequestList, RequestsList, Role
from engine_host.protocol.snapshot import WINDOWS, Snapshot
from tests.console import sample, sample_live, sample_switch, sample_throttle
from tests.console.scripted_host import ScriptedHost
from tests.console.scripted_switch import ScriptedSwitches


def busy(first: Snapshot, number: int) -> Snapshot:
    """Every figure another one than a second ago."""
    chance = random.Random(number)
    change = msgspec.structs.replace
    factor = chance.uniform(0.7, 1.3)
    usage = min(1.0, 0.6825 * factor)
    return change(
        first,
        at=time.time(),
        seq=first.seq + number,
        host=change(
            first.host,
            uptime_s=first.host.uptime_s + number,
            cpu_usage=chance.random(),
            load_1m=chance.uniform(1, 9),
            memory_used_bytes=int(211 * sample.GIB * factor),
        ),
        kv=change(first.kv, usage=usage, blocks=change(first.kv.blocks, active=int(usage * 60_412))),
        queue=change(
            first.queue,
            running=int(37 * factor),
            waiting=int(12 * factor),
            oldest_wait_s=1.8 * factor,
            preemptions_per_s=chance.random(),
        ),
        speculation=change(
            first.speculation,
            acceptance_rate=0.7 * factor,
            mean_acceptance_length=3.9 * factor,
            per_position=[min(1.0, p * chance.uniform(0.8, 1.2)) for p in (0.88, 0.79, 0.7, 0.61, 0.55)],
            windows={name: sample_live.window(factor * chance.uniform(0.9, 1.1), 10) for name in WINDOWS},
            drafted_per_s=2730 * factor,
            accepted_per_s=1944 * factor,
        ),
        throughput=change(
            first.throughput,
            prompt_tokens_per_s=9830 * factor,
            generation_tokens_per_s=2140 * factor,
            requests_per_s=6.87 * factor,
        ),
        latency=change(
            first.latency,
            ttft=sample.windows(0.182 * factor, int(412 * factor)),
            itl=sample.windows(0.0094 * factor, int(128_312 * factor)),
            e2e=sample.windows(3.21 * factor, int(409 * factor)),
        ),
        prefix_cache=change(first.prefix_cache, hit_rate=0.4 * factor, queried_tokens=int(589_200 * factor)),
        throttle=change(first.throttle, inflight=int(49 * factor)),
        gpus=[change(g, utilization=chance.uniform(0.9, 1.0), power_w=612 * factor) for g in first.gpus],
    )


def moving_requests(params: RequestsList, number: int) -> RequestList:
    """Every figure of every row another one than a second ago; the cursor's request stays the oldest."""
    aged = time.time() % 1_000
    change = msgspec.structs.replace
    rows = [
        change(row, age_s=row.age_s + aged, generated_tokens=row.generated_tokens + int(aged * 31))
        for row in sample_live.requests(number - 12, 12).requests[: params.limit]
    ]
    return sample_live.requests(requests=rows, total=number, by_state={"running": number - 12, "waiting": 12})


def moving_map(params: KvMapParams) -> KvMap:
    """2,000 tokens a second take 125 blocks of 16: of 4,000 cells one in thirty changes."""
    found = sample_live.kv_map(params.cells)
    chance = random.Random(int(time.time()))
    each = found.blocks_per_cell
    cells = [(each, 0, 0, 0) if chance.random() < 0.03 else cell for cell in found.cells]
    return msgspec.structs.replace(found, cells=cells)


LIVE = {
    "throttle.get": sample_throttle.sheet(),
    "kv.map": moving_map,
    "requests.list": lambda params: moving_requests(params, 256),
}

SCENES: dict[str, dict[str, Any]] = {
    "live": {"next_snapshot": busy},
    "crowd": {
        "next_snapshot": busy,
        "answers": {**LIVE, "requests.list": lambda params: moving_requests(params, 2_000)},
    },
    "starting": {"snapshot": sample.starting()},
    "dead": {"snapshot": sample.dead()},
    "recovering": {"snapshot": sample.recovering()},
    "draining": {"snapshot": sample.draining()},
    "hung": {"snapshot": sample.hung()},
    "idle": {"snapshot": sample.idle_cpu()},
    "silent": {"silent": {"telemetry"}},
    "many": {"profiles": sample_switch.many_profiles()},
    "broken": {"profiles": sample_switch.broken_profiles()},
    "overlap": {"forecast": sample_switch.overlapping_forecast()},
    "viewer": {"hello": sample.hello(Role.VIEWER)},
}


async def serve(path: Path, scene: str) -> None:
    now = time.time()
    moved: History = sample.history(end_at=now - 1)
    script = {"snapshot": sample_live.live(at=now), "history": moved, "answers": LIVE, **SCENES[scene]}
    host = ScriptedHost(path, **script)
    switches = ScriptedSwitches(host)
    host.on |= {"switch": switches.begin, "switch.cancel": switches.cancel}
    await host.start()
    await switches.run()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "live"))
