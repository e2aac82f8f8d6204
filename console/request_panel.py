"""All about one request."""

from __future__ import annotations

from console import format as fmt
from console.labels import label
from console.lines import BLANK, Line, Tone, clip, line
from console.queue_desk import ENDED, UNLISTED
from console.queue_table import acceptance
from console.switch_panels import wrapped
from engine_host.protocol.methods import RequestRow
from engine_host.protocol.snapshot import Snapshot


def ended_words(row: RequestRow) -> str:
    """What is said of one that the host lists no more; empty for one that it does."""
    return {
        ENDED: "ENDED: the host has it no more; as it was last",
        UNLISTED: "NOT LISTED any more: it has ended, or others come before it; as it was last",
    }.get(row.state, "")


def about_lines(row: RequestRow | None, width: int) -> list[Line]:
    """Below the list: the whole id, and what is to be said of it."""
    if row is None:
        return [BLANK, BLANK]
    said, tone = ended_words(row), Tone.WARN
    if not said and row.trouble:
        said = fmt.clean(row.trouble)
    mark = "▲ " if said else ""
    second = line((f"  {mark}{said}", tone)) if said else line(("  enter shows all of it", Tone.FAINT))
    return [line((clip(fmt.clean(row.id), width), Tone.STRONG)), second]


def request_lines(row: RequestRow, snapshot: Snapshot, width: int) -> list[Line]:
    ids = wrapped(row.id, width - 12)
    rows = [line(label("id" if i == 0 else ""), (part, Tone.STRONG)) for i, part in enumerate(ids)]
    if row.trouble:
        rows += [
            line(label(""), (f"{'▲ ' if i == 0 else '  '}{part}", Tone.WARN))
            for i, part in enumerate(wrapped(row.trouble, width - 14))
        ]
    total = snapshot.kv.blocks.total
    share = row.blocks / total if row.blocks is not None and total and total > 0 else None
    return [
        *rows,
        line(label("state"), (fmt.clean(row.state), Tone.STRONG)),
        line(label("age"), f"{fmt.span(row.age_s)}, of which it waited {fmt.span(row.waited_s)}"),
        line(label("prompt"), f"{_tokens(row.prompt_tokens)}, {_found(row)}"),
        line(
            label("generated"), f"{_tokens(row.generated_tokens)} of {fmt.count(row.max_tokens)} at most{_speed(row)}"
        ),
        line(label("KV blocks"), f"{fmt.count(row.blocks)}, {fmt.percent(share)} of all {fmt.count(total)}"),
        line(label("priority"), f"{fmt.count(row.priority)}   (lower comes first)"),
        line(label("preempted"), fmt.many(row.preemptions, "time")),
        line(
            label("drafts"),
            f"{fmt.count(row.drafted)} tokens drafted, {fmt.count(row.accepted)} accepted: "
            f"acceptance {fmt.percent(acceptance(row))}",
        ),
    ]


def _tokens(number: int | None) -> str:
    return fmt.many(number, "token")


def _found(row: RequestRow) -> str:
    share = row.cached_tokens / row.prompt_tokens if row.cached_tokens is not None and row.prompt_tokens else None
    return f"{fmt.count(row.cached_tokens)} of them found in the prefix cache ({fmt.percent(share)})"


def _speed(row: RequestRow) -> str:
    """Over the time in which it did not wait; of preemptions only the scheduler tells."""
    ran_s = row.age_s - row.waited_s
    if not row.generated_tokens or ran_s <= 0:
        return ""
    return f"   {fmt.rate(row.generated_tokens / ran_s)} while it ran"
