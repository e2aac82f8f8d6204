"""Snapshots as text for a person: the overview's panels without its history."""

from __future__ import annotations

from console import format as fmt
from console import panels
from console.lines import BLANK, Line, Tone, line
from console.model import STALE_AFTER_S
from console.situation import situation
from console.words import state_word, trouble
from engine_host.protocol.snapshot import Snapshot

SITUATION_ROWS = 20
GPU_ROWS = 16


def status_lines(snapshot: Snapshot, width: int) -> list[Line]:
    """A screenful; only what is known of the engine in its present state."""
    wide = max(80, width)
    head = line((f"{fmt.clean(snapshot.host.name)}", Tone.STRONG), "  ", state_word(snapshot.state))
    since = max(0.0, snapshot.at - snapshot.state_since)
    rows = [line(*head, f" for {fmt.duration(since)}", "   API at ", fmt.clean(snapshot.host.url))]
    rows.append(panels.header(snapshot, wide))
    if snapshot.age_s > STALE_AFTER_S:
        rows.append(line((f"▲ STALE: these values are {fmt.duration(snapshot.age_s)} old", Tone.WARN)))
    rows += situation(snapshot, wide, SITUATION_ROWS)
    rows.append(BLANK)
    rows += panels.kv(snapshot, wide)
    rows += panels.requests(snapshot)
    rows += panels.speculation(snapshot, wide)
    rows += [panels.tokens(snapshot), panels.prefix(snapshot)]
    rows += panels.latency(snapshot, ("ttft", "itl", "e2e", "queue"), "1m")
    rows += [panels.throttle(snapshot, wide), panels.machine(snapshot)]
    rows += panels.gpus(snapshot, GPU_ROWS, show_processes=False)
    return rows


WATCH_HEAD: Line = line(
    (
        f"{'time':<9}{'state':<14}{'KV':>7}{'running':>9}{'waiting':>9}{'out/s':>8}{'in/s':>8}{'accept':>8}"
        f"{'TTFT p95':>10}{'ITL p95':>9}",
        Tone.FAINT,
    )
)
"""The latencies are those of the last 10 s: a line a second should show what changes by the second."""


def watch_line(snapshot: Snapshot) -> Line:
    word, tone = state_word(snapshot.state)
    ttft = snapshot.latency.ttft.get("10s")
    itl = snapshot.latency.itl.get("10s")
    flow = snapshot.throughput
    return line(
        f"{fmt.clock(snapshot.at):<9}",
        (f"{word:<14}", tone),
        f"{fmt.percent(snapshot.kv.usage):>7}{fmt.count(snapshot.queue.running):>9}"
        f"{fmt.count(snapshot.queue.waiting):>9}{fmt.si(flow.generation_tokens_per_s):>8}"
        f"{fmt.si(flow.prompt_tokens_per_s):>8}{fmt.percent(snapshot.speculation.acceptance_rate):>8}"
        f"{fmt.latency(ttft.p95_s if ttft else None):>10}{fmt.latency(itl.p95_s if itl else None):>9}",
        (f"  ▲ {fmt.clean(what)}", Tone.BAD) if (what := trouble(snapshot)) else "",
    )
