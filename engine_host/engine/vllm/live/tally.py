"""Drafted and accepted tokens of every request, exactly as vLLM counts them.

A scheduler step only notes what it has at hand; the adding up is done in the publisher's thread (`Tally.take`).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

_STEPS_AT_ONCE = 8
_REST_S = 0.0001
"""Between so many steps: whoever waits for the interpreter meanwhile, which is the engine core, gets it."""
_NOTES_MAX = 20_000
"""Notes not yet added up, of minutes: the publisher has ended or starves."""


@dataclass(slots=True)
class Verified:
    """What a step has at hand, before vLLM has looked at it: some of its requests end in it. Numbers and names alone:
    the lists that they are of would grow old here, and be looked at by the garbage collector."""

    requests: Sequence[str]
    """That have a draft."""
    scheduled: Mapping[str, int]
    """Tokens of every request; of one with a draft, one more than that has."""
    generated: Sequence[int]
    """Tokens, by place in the batch; none in a step that only read a prompt."""
    places: Mapping[str, int]
    invalid: Mapping[str, int] | None
    """Draft tokens that a grammar has struck out."""
    by_vllm: tuple[int, int] | None = None
    """`(drafted, accepted)` as vLLM's own statistics have them afterwards; None without statistics."""


class Counted(NamedTuple):
    """A step in which vLLM was watched as it counted: `(request, drafted, accepted)`."""

    drafts: list[tuple[str, int, int]]


class Admitted(NamedTuple):
    requests: Sequence[Any]
    """As the scheduler's output has new ones."""
    at: float
    """Unix time."""


class Gone(NamedTuple):
    request_id: str


@dataclass(slots=True)
class Sums:
    cached_tokens: int
    began: float = 0.0
    """Unix time; 0 before its first step."""
    preempted_at: float = 0.0
    """Unix time; 0 unless it waits to run again."""
    waited_again_s: float = 0.0
    """After earlier preemptions."""
    drafted: int = 0
    accepted: int = 0

    def seen(self, is_preempted: bool, at: float) -> None:
        """vLLM keeps no time of a preemption: what lies between two looks is not seen."""
        if is_preempted:
            self.preempted_at = self.preempted_at or at
        elif self.preempted_at:
            self.waited_again_s += at - self.preempted_at
            self.preempted_at = 0.0


class Overrun(Exception):
    """Nobody adds up."""


Ran = tuple[float, float, int, int, int, int, int, bool]
"""A step, as `engine_host.live.sample.STEP`."""


class Tally:
    def __init__(self, tokens_beyond_draft: int, add_step: Callable[..., None]) -> None:
        """`tokens_beyond_draft`: those that a verification yields in any case; one, but for diffusion models.
        `add_step` gets every `Ran` of which is noted."""
        self._add_step = add_step
        self._beyond = tokens_beyond_draft
        self._notes: deque[Verified | Counted | Admitted | Gone | Ran] = deque()
        self.note = self._notes.append
        self.by_request: dict[str, Sums] = {}
        self.drafted = 0
        self.accepted = 0
        self.disagrees = False
        """A step's sums were not vLLM's: this release leaves out requests that the short way does not know of."""

    def check(self) -> None:
        """Raises `Overrun`."""
        if len(self._notes) > _NOTES_MAX:
            raise Overrun("the thread that publishes the scheduler's state does not keep up")

    @property
    def pending(self) -> int:
        return len(self._notes)

    def take(self, notes: int) -> None:
        """Add up the oldest `notes`."""
        for n in range(notes):
            note = self._notes.popleft()
            if type(note) is tuple:
                self._add_step(*note)
            elif isinstance(note, Verified):
                self._verified(note)
            elif isinstance(note, Admitted):
                self._admitted(note)
            elif isinstance(note, Counted):
                self._counted(note)
            elif isinstance(note, Gone):
                self.by_request.pop(note.request_id, None)
            if n % _STEPS_AT_ONCE == _STEPS_AT_ONCE - 1:
                time.sleep(_REST_S)

    def _admitted(self, note: Admitted) -> None:
        for request in note.requests:
            # One that was preempted begins a second time.
            self.by_request.setdefault(request.req_id, Sums(request.num_computed_tokens, note.at))

    def _verified(self, note: Verified) -> None:
        drafted = accepted = 0
        by_request, generated, places, invalid = self.by_request, note.generated, note.places, note.invalid
        beyond = self._beyond
        scheduled = note.scheduled
        for request_id in note.requests:
            length = scheduled[request_id] - 1
            # vLLM passes over requests that ended between the step's beginning and its end.
            if not length or (sums := by_request.get(request_id)) is None:
                continue
            tokens = generated[places[request_id]] if generated else 0
            if tokens == 0 and beyond:
                continue
            if invalid:
                length -= invalid.get(request_id, 0)
            kept = tokens - beyond if tokens > beyond else 0
            sums.drafted += length
            sums.accepted += kept
            drafted += length
            accepted += kept
        ours = (drafted, accepted)
        told = ours if note.by_vllm is None else note.by_vllm
        self.disagrees |= told != ours
        self.drafted += told[0]
        self.accepted += told[1]

    def _counted(self, note: Counted) -> None:
        for request_id, drafted, accepted in note.drafts:
            self.drafted += drafted
            self.accepted += accepted
            if (sums := self.by_request.get(request_id)) is not None:
                sums.drafted += drafted
                sums.accepted += accepted
