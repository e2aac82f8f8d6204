"""The parts of the overview, each a pure function from a snapshot to lines.

A panel never fails on missing data: unknown is an en dash at the same place, so the eye finds a number where it was.
Labels are 11 cells wide on every panel; numbers are right-aligned in fixed columns, so that a changed digit repaints
that digit.
"""

from __future__ import annotations

from collections.abc import Sequence

from console import format as fmt
from console.charts import SCALE, buckets, history_chart
from console.labels import LABEL, WINDOW_NAMES, label, over, sub
from console.lines import Line, Piece, Tone, cells, clip, fit, line, spread
from console.model import Series
from console.words import severity_glyph, trouble
from engine_host.protocol.events import Event
from engine_host.protocol.snapshot import WINDOWS, Gpu, Percentiles, Snapshot, Throttle

KV_WARN = 0.80
KV_BAD = 0.95
"""Where operators warn and page (vLLM field practice); above the second, preemption is near."""

WHO = 12
"""Cells of an operator's name in the row of the throttle, where there is room."""
LEAST_WHO = 3
"""On 80 columns with all that the row may say."""


def header(snapshot: Snapshot, width: int) -> Line:
    """Who and what: host, profile, model, version, uptime."""
    version = snapshot.engine.vllm_version
    right = line(
        f"vLLM {fmt.clean(version) if version else fmt.DASH}",
        f"   up {fmt.duration(snapshot.host.uptime_s)} ",
    )
    model = fmt.clean(snapshot.engine.model or fmt.DASH)
    left = line(
        "profile ",
        (fmt.clean(snapshot.profile.name), Tone.STRONG),
        "  ",
        (model.rstrip("/").rsplit("/", 1)[-1] or model, Tone.STRONG),
    )
    return spread(left, right, width)


def kv_tone(usage: float | None) -> Tone:
    if usage is None or usage < KV_WARN:
        return Tone.BAR
    return Tone.WARN


def kv(snapshot: Snapshot, width: int) -> list[Line]:
    cache = snapshot.kv
    blocks, cores = cache.blocks, cache.usage_by_engine
    is_full = cache.usage is not None and cache.usage >= KV_BAD
    held = f"{fmt.count(blocks.active)} of {fmt.count(blocks.total)}"
    if len(cores) > 1:
        # The gauge is of the fullest one, so the blocks of all beside it would seem to contradict it.
        full = sum(usage >= KV_BAD for usage in cores)
        told = f"▲ FULL  {full} of {len(cores)} cores" if is_full else f"in the fullest of {len(cores)}"
    else:
        told = f"▲ FULL  {held}" if is_full else f"{held} blocks"
    tail = f"{fmt.percent(cache.usage):>7}  {told}"
    return [line(label("KV cache"), (fmt.bar(cache.usage, _gauge_width(width)), kv_tone(cache.usage)), tail)]


def kv_history(snapshot: Snapshot, series: Series | None, width: int, height: int) -> list[Line]:
    """Five minutes of KV usage under the gauge, in the same cells, and what the cache holds."""
    waste = snapshot.kv.internal_waste
    note = f"  {fmt.count(snapshot.kv.capacity_tokens)} tokens fit" + (
        f", {fmt.percent(waste)} wasted" if waste is not None else ""
    )
    if height == 1:
        strip = fmt.strip(buckets(series, _gauge_width(width)), 1.0)
        return [line(sub("5 min"), (strip, Tone.BAR), " " * 7 if waste is None else "", note)]
    rows = history_chart("5 min", series, _gauge_width(width) + LABEL + SCALE, height, top=1.0)
    return [*rows[:-1], (*rows[-1], *line(note))]


def _gauge_width(width: int) -> int:
    return max(8, width - LABEL - 7 - 29)


def prefix(snapshot: Snapshot) -> Line:
    cache = snapshot.prefix_cache
    if cache.enabled is False:
        return line(label("Prefix"), ("off in this profile", Tone.FAINT))
    return line(
        label("Prefix"),
        f"hit rate {fmt.percent(cache.hit_rate):>7}   of {fmt.si(cache.queried_tokens):>5} prompt tokens looked up",
        over(cache.window_s),
    )


def requests(snapshot: Snapshot) -> list[Line]:
    queue = snapshot.queue
    waiting_tone = Tone.WARN if queue.waiting else Tone.STRONG
    rows = [
        line(
            label("Requests"),
            "running ",
            (f"{fmt.count(queue.running):>5}", Tone.STRONG),
            "   waiting ",
            (f"{fmt.count(queue.waiting):>5}", waiting_tone),
            "   held ",
            (f"{fmt.count(queue.held):>4}", Tone.WARN if queue.held else Tone.STRONG),
            f"   oldest wait {fmt.latency(queue.oldest_wait_s):>7}",
        )
    ]
    preempting = Tone.WARN if queue.preemptions_per_s else Tone.PLAIN
    second = [
        (" " * LABEL, Tone.PLAIN),
        (f"preempted {fmt.rate(queue.preemptions_per_s):>7}", preempting),
        over(queue.window_s),
    ]
    if what := trouble(snapshot):
        second += [("   ", Tone.PLAIN), (f" ▲ {fmt.clean(what)} ", Tone.BAD)]
    else:
        reasons = [f"{fmt.clean(name)} {fmt.count(n)}" for name, n in sorted(queue.waiting_by_reason.items()) if n]
        second += [("   waiting for: " + ", ".join(reasons) if reasons else "", Tone.PLAIN)]
    rows.append(line(*second))
    return rows


def speculation(snapshot: Snapshot, width: int) -> list[Line]:
    spec = snapshot.speculation
    if spec.method is None:
        off = "off: no draft tokens in this profile" if snapshot.engine.uptime_s is not None else fmt.DASH
        return [line(label("Speculate"), (off, Tone.FAINT))]
    window = over(spec.window_s)
    first = line(
        label("Speculate"),
        "acceptance ",
        (f"{fmt.percent(spec.acceptance_rate):>6}", Tone.STRONG),
        "   mean length ",
        (f"{fmt.significant(spec.mean_acceptance_length):>4}", Tone.STRONG),
        f" tokens   speed-up {fmt.factor(spec.estimated_speedup):>4}",
        window,
    )
    positions = _positions(spec.per_position, width - LABEL)
    drafts = line(
        sub("drafts"),
        f"{fmt.clean(spec.method)}   K {fmt.count(spec.k)} of max {fmt.count(spec.k_max)}"
        f"   drafted {fmt.rate(spec.drafted_per_s):>8}   accepted {fmt.rate(spec.accepted_per_s):>8}",
    )
    return [first, line(sub("position"), *positions), drafts]


def _positions(rates: Sequence[float | None], room: int) -> list[Piece]:
    """Acceptance by draft position: as many as fit, each with a small bar and whole percents."""
    if not rates:
        return [("no draft in the window", Tone.FAINT)]
    shown = min(len(rates), max(1, room // 8))
    left_out = len(rates) - shown
    each = (room - (6 if left_out else 0)) // shown
    bar_width = max(1, min(10, each - 7))
    pieces: list[Piece] = []
    for index, value in enumerate(rates[:shown], start=1):
        number = fmt.DASH if value is None else f"{value * 100:.0f}%"
        pieces += [(f"{index} ", Tone.FAINT), (fmt.bar(value, bar_width), Tone.BAR), (f"{number:>4} ", Tone.PLAIN)]
    if left_out:
        pieces.append((f"+{left_out}", Tone.FAINT))
    return pieces


def tokens(snapshot: Snapshot) -> Line:
    flow = snapshot.throughput
    return line(
        label("Tokens"),
        "out ",
        (f"{fmt.rate(flow.generation_tokens_per_s):>8}", Tone.STRONG),
        "   in ",
        (f"{fmt.rate(flow.prompt_tokens_per_s):>8}", Tone.STRONG),
        f"   requests done {fmt.rate(flow.requests_per_s):>8}",
        over(flow.window_s),
    )


def latency(snapshot: Snapshot, names: Sequence[str], window: str) -> list[Line]:
    """One window: a row a latency. `names` chooses among ttft, itl, e2e, queue."""
    return [
        _latency_head((f"samples  ({WINDOW_NAMES[window]})", Tone.FAINT)),
        *(
            line(f"  {_LATENCY_NAMES[name]:<{_LATENCY_HEAD}}", *_percentiles(getattr(snapshot.latency, name), window))
            for name in names
        ),
    ]


def latency_windows(snapshot: Snapshot, names: Sequence[str]) -> list[Line]:
    """All windows: three rows a latency, so that a rise stands out against the longer past."""
    rows = [_latency_head(("samples  over", Tone.FAINT))]
    for name in names:
        for index, window in enumerate(WINDOWS):
            head = _LATENCY_NAMES[name] if index == 0 else ""
            values = _percentiles(getattr(snapshot.latency, name), window)
            rows.append(line(f"  {head:<{_LATENCY_HEAD}}", *values, (f"  {WINDOW_NAMES[window]}", Tone.FAINT)))
    return rows


_LATENCY_HEAD = 15
_LATENCY_NAMES = {"ttft": "first token", "itl": "between tokens", "e2e": "whole request", "queue": "in the queue"}


def _latency_head(last: Piece) -> Line:
    return line(label("Latency"), (f"{'p50':>{_LATENCY_HEAD + 1}}{'p95':>10}{'p99':>10}     ", Tone.FAINT), last)


def _percentiles(by_window: dict[str, Percentiles], window: str) -> list[Piece]:
    values = by_window.get(window) or Percentiles()
    return [
        (f"{fmt.latency(values.p50_s):>10}", Tone.PLAIN),
        (f"{fmt.latency(values.p95_s):>10}", Tone.STRONG),
        (f"{fmt.latency(values.p99_s):>10}", Tone.PLAIN),
        (f"{fmt.count(values.n):>12}" if values.n else f"{'none':>12}", Tone.FAINT),
    ]


def throttle(snapshot: Snapshot, width: int) -> Line:
    """What is held is told of with the requests, a pause or a drain with the state unless that is another one."""
    gate = snapshot.throttle
    closed = "draining" if gate.draining else "paused" if gate.paused else ""
    lead = line(
        label("Throttle"),
        (f"{closed}  " if closed and closed != snapshot.state.value else "", Tone.WARN),
        f"in flight {fmt.count(gate.inflight):>5}  cap {fmt.count(gate.max_inflight):>5}",
    )
    rest = line(
        "  refused ",
        (f"{fmt.count(gate.refused_total):>5}", Tone.WARN if gate.refused_total else Tone.PLAIN),
        f"  auto {fmt.clean(gate.auto)}" if gate.auto != "off" else "",
    )
    # What is not the profile's comes before what is known anyway: 80 columns have no room for both.
    names = [name for name in gate.limited_by if name not in ("max_inflight", "paused", "draining")]
    few = f"  {len(names)} set" if names else "" if gate.limited_by else "  since start"
    room = width - cells(lead) - cells(rest)
    whose = _whose_cap(gate, room - cells(line(few)))
    fitting = (said for said in _whose_others(gate, names) if cells(line(said)) <= room - cells(line(whose)))
    said = next(fitting, few)
    return line(*lead, (whose, Tone.WARN), *rest, (said, Tone.WARN if names else Tone.PLAIN))


def _whose_cap(gate: Throttle, room: int) -> str:
    if "max_inflight" not in gate.limited_by:
        return ""
    who = fmt.clean(gate.set_by.get("max_inflight", "set"))
    return f" ({clip(who, min(WHO, max(LEAST_WHO, room - 3)))})"


def _whose_others(gate: Throttle, names: Sequence[str]) -> list[str]:
    """The more is told the earlier; none where there are none."""
    if not names:
        return []
    told = [f" ({clip(fmt.clean(who), WHO)})" if (who := gate.set_by.get(name)) else "" for name in names]
    known = [fmt.clean(name) for name in names]
    return [f"  set: {', '.join(map(str.__add__, known, told))}", f"  set: {', '.join(known)}"]


def auto(snapshot: Snapshot, width: int) -> list[Line]:
    """What the controller did last, where there is a row to spare for it."""
    gate = snapshot.throttle
    if gate.auto == "off" or not gate.auto_text:
        return []
    when = f"{fmt.clock(gate.auto_at)} " if gate.auto_at is not None else ""
    return [fit(line(sub("auto"), (when, Tone.FAINT), fmt.clean(gate.auto_text)), width)]


def machine(snapshot: Snapshot) -> Line:
    host = snapshot.host
    return line(
        label("Host"),
        f"CPU {fmt.percent(host.cpu_usage):>6}   load {fmt.significant(host.load_1m):>4}"
        f"   memory {fmt.share(host.memory_used_bytes, host.memory_total_bytes)}"
        f"   ours {fmt.size(host.process_memory_bytes)}",
    )


def gpus(snapshot: Snapshot, rows: int, show_processes: bool) -> list[Line]:
    """One line a GPU, at most `rows`; what does not fit is summed up rather than dropped in silence."""
    if not snapshot.gpus:
        return [line(label("GPU"), ("no GPU on this host", Tone.FAINT))]
    if len(snapshot.gpus) > rows:
        return [*[_gpu(g) for g in snapshot.gpus[: rows - 1]], _rest(snapshot.gpus[rows - 1 :])]
    lines: list[Line] = []
    for gpu in snapshot.gpus:
        lines.append(_gpu(gpu))
        if show_processes:
            lines += [
                line(
                    sub(""),
                    f"{fmt.size(p.memory_bytes):>9}  {fmt.clean(p.name)} ({p.pid})",
                    ("", Tone.PLAIN) if p.is_ours else ("  not ours", Tone.WARN),
                )
                for p in gpu.processes
            ]
    return lines


def _gpu(gpu: Gpu) -> Line:
    watts = fmt.DASH if gpu.power_w is None else f"{gpu.power_w:.0f} W"
    degrees = fmt.DASH if gpu.temperature_c is None else f"{gpu.temperature_c:.0f} °C"
    return line(
        label(f"GPU {gpu.index}"),
        f"busy {fmt.percent(gpu.utilization):>6}   memory {fmt.share(gpu.memory_used_bytes, gpu.memory_total_bytes)}"
        f"   {watts:>5}   {degrees:>5}   {fmt.clean(gpu.name)}",
    )


def _rest(gpus: Sequence[Gpu]) -> Line:
    busy = [g.utilization for g in gpus if g.utilization is not None]
    used = [g.memory_used_bytes for g in gpus if g.memory_used_bytes is not None]
    total = [g.memory_total_bytes for g in gpus if g.memory_total_bytes is not None]
    return line(
        label(f"GPU {gpus[0].index}-{gpus[-1].index}"),
        f"busy {fmt.percent(min(busy) if busy else None)} to {fmt.percent(max(busy) if busy else None)}"
        f"   memory {fmt.share(sum(used) if used else None, sum(total) if total else None)} in all",
    )


def events(recent: Sequence[Event], width: int, rows: int) -> list[Line]:
    """The newest first, one line each."""
    if not recent:
        return [line(label("Events"), ("none yet", Tone.FAINT))]
    shown = list(reversed(recent[-rows:]))
    return [
        fit(line(label("Events") if index == 0 else (" " * LABEL, Tone.PLAIN), *event_pieces(event)), width)
        for index, event in enumerate(shown)
    ]


def event_pieces(event: Event, with_date: bool = False) -> list[Piece]:
    glyph, tone = severity_glyph(event.severity)
    who = "" if event.who == "host" else f" ({fmt.clean(event.who)})"
    return [
        (f"{fmt.date(event.at) if with_date else fmt.clock(event.at)} ", Tone.FAINT),
        (glyph, tone),
        (" ", Tone.PLAIN),
        (fmt.clean(event.text), Tone.STRONG if tone is Tone.BAD else Tone.PLAIN),
        (who, Tone.FAINT),
    ]
