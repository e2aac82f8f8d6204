"""What a host tells of the inside of its engine: dials and requests."""

from __future__ import annotations

from typing import Any

from engine_host.protocol.methods import DialsApplied, DialSheet, RequestList, RequestRow
from engine_host.protocol.snapshot import Dial, State


def dials() -> dict[str, Dial]:
    return {
        "max_active_seqs": Dial(value=256, low=1, high=256, start=256),
        "max_scheduled_tokens": Dial(value=8192, low=16, high=8192, start=8192),
        "speculative_tokens": Dial(
            value=2, low=0, high=5, start=5, who="maria", reason="trying", since=1_796_047_402.0, until=1_796_048_002.0
        ),
    }


def sheet() -> DialSheet:
    return DialSheet(dials=dials())


def applied() -> DialsApplied:
    text = "speculative_tokens 5 → 2 for 10 m: trying"
    return DialsApplied(state=State.SERVING, state_version=7, took_s=0.012, text=text, dials=dials())


def row(id: str, state: str = "running", **more: Any) -> RequestRow:
    told: dict[str, Any] = {
        "age_s": 12.0,
        "waited_s": 0.3,
        "prompt_tokens": 1_024,
        "generated_tokens": 340,
        "max_tokens": 1_024,
        "cached_tokens": 512,
        "blocks": 43,
        "priority": 0,
        "preemptions": 1,
        "drafted": 500,
        "accepted": 355,
    }
    return RequestRow(id=id, state=state, **{**told, **more})


def requests() -> RequestList:
    stuck = "stuck: its prompt has 9,000 tokens, the KV cache holds 3,200; it can never be scheduled"
    waiting = {"generated_tokens": 0, "drafted": 0, "accepted": 0, "blocks": 0, "prompt_tokens": 9_000}
    return RequestList(
        requests=[
            row("chatcmpl-1f0c7a-0001"),
            row("chatcmpl-1f0c7b-0002", preemptions=0),
            row("cmpl-batch-77", "waiting", trouble=stuck, **waiting),
        ],
        total=3,
        by_state={"running": 2, "waiting": 1, "deferred": 0, "preempted": 0},
        at=1_796_047_500.0,
    )
