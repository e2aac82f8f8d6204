"""Requests that stand still are told once, with what can be done about it now, and so is their end."""

from __future__ import annotations

from typing import Any

import pytest

from engine_host.protocol.events import Severity
from engine_host.protocol.snapshot import Queue
from engine_host.telemetry.stall_watch import StallWatch

FLOWS = Queue()
HUNG = Queue(stalled=True, stalled_reason="hung", stalled_text="requests run and no token comes")
STUCK = Queue(stalled=True, stalled_reason="stuck", stalled_text="requests wait and none runs")


class Told:
    def __init__(self) -> None:
        self.events: list[tuple[str, str, Severity]] = []
        self.watch = StallWatch(self._take)

    def _take(self, kind: str, text: str, *, severity: Severity = Severity.INFO, **rest: Any) -> None:
        self.events.append((kind, text, severity))

    def look(self, queue: Queue, *, can_run: bool = True, is_switching: bool = False) -> None:
        self.watch.look(queue, can_run=can_run, is_switching=is_switching)

    @property
    def kinds(self) -> list[str]:
        return [kind for kind, _, _ in self.events]


def test_each_beginning_and_end_is_told_once() -> None:
    told = Told()
    for queue in (FLOWS, HUNG, HUNG, STUCK, STUCK, FLOWS, FLOWS):
        told.look(queue)
    assert told.kinds == ["engine.hung", "engine.stuck", "engine.flows"]
    assert [severity for _, _, severity in told.events] == [Severity.ERROR, Severity.ERROR, Severity.INFO]
    assert told.events[-1][1] == "no longer stuck: requests run again"


@pytest.mark.parametrize(
    ("queue", "is_switching", "remedy"),
    [
        (HUNG, False, "vllm-console restart"),
        (STUCK, False, "vllm-console requests list"),
        (HUNG, True, "vllm-console switch --cancel"),
        (STUCK, True, "vllm-console switch --cancel"),
    ],
)
def test_it_says_what_is_wrong_and_a_command_that_is_not_refused_now(
    queue: Queue, is_switching: bool, remedy: str
) -> None:
    told = Told()
    told.look(queue, is_switching=is_switching)
    [(_, text, _)] = told.events
    assert queue.stalled_text is not None and queue.stalled_text in text and remedy in text
    assert ("restart" in text) == (queue is HUNG and not is_switching)


def test_an_engine_that_can_run_nothing_is_neither_hung_nor_said_to_run_again() -> None:
    told = Told()
    told.look(HUNG)
    told.look(HUNG, can_run=False)
    told.look(FLOWS)
    assert told.kinds == ["engine.hung"]
