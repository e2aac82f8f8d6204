"""The unfinished requests as a list: what the front end knows exactly, and beside it what the scheduler tells.

The front end is believed about which requests there are, their ages and their tokens: it hears of every one at once,
and a request that was carried into this engine begins anew for the scheduler alone. Ten thousand of them are sorted as
arrays; rows are made only of those asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from engine_host.engine.port import FrontRequest
from engine_host.live.sample import REQUEST, LiveSample, RequestState
from engine_host.protocol.errors import OperatorError
from engine_host.protocol.methods import RequestList, RequestOrder, RequestRow, RequestsList
from engine_host.telemetry.request_trouble import Trouble

STATES: dict[str, RequestState] = {state.name.lower(): state for state in RequestState}
"""As they are named on the wire."""
_NAMES = {int(state): name for name, state in STATES.items()}
ID_CHARS = 200
"""Of an id on the wire: a client may choose one of many kilobytes."""
_KEY_BYTES = REQUEST["id"].itemsize


@dataclass(frozen=True)
class Known:
    """What there is to be known at one moment."""

    front: Sequence[FrontRequest]
    samples: Sequence[LiveSample]
    """Empty without a live scheduler, or before its first word."""
    waiting: int
    """By the scheduler's gauges: which requests those are is a guess, made only without samples."""
    trouble: Trouble
    now: float
    """Unix time."""


class RequestTable:
    """The requests of one moment, in the order in which they came."""

    def __init__(self, known: Known) -> None:
        self._known = known
        self._records = (
            np.concatenate([sample.requests for sample in known.samples]) if known.samples else np.empty(0, REQUEST)
        )
        at = dict(zip(self._records["id"].tolist(), range(len(self._records)), strict=True))
        rows = [at.get(request.id.encode(errors="replace")[:_KEY_BYTES], -1) for request in known.front] if at else -1
        self._at = np.broadcast_to(np.asarray(rows, np.int64), len(known.front))
        """Index into the records; -1: the scheduler has not told of it."""
        self.states = self._told("state", self._guessed())
        waiting = np.flatnonzero(self.states != RequestState.RUNNING)
        self._oldest_waiting = int(waiting[0]) if len(waiting) else -1

    def listed(self, asked: RequestsList, unavailable_reason: str | None) -> RequestList:
        """Raises `OperatorError` for a state that there is none of."""
        chosen = self._chosen(asked)
        ordered = chosen[np.argsort(-self._sizes(asked.order)[chosen], kind="stable")][: asked.limit]
        counts = np.bincount(self.states, minlength=len(STATES))
        return RequestList(
            requests=self._rows(ordered),
            total=len(self._known.front),
            by_state={name: int(counts[state]) for name, state in STATES.items()},
            at=self._known.now,
            unavailable_reason=unavailable_reason,
        )

    def _guessed(self) -> npt.NDArray[np.uint8]:
        """Without the scheduler's word: what has a token runs. Of the others the youngest wait, as many as the gauges
        say; the older ones are being prefilled. Beside its word, what it has not told of has only just come."""
        has_token = np.asarray([one.silent_s is not None for one in self._known.front], bool)
        states = np.where(has_token, np.uint8(RequestState.RUNNING), np.uint8(RequestState.WAITING))
        if not self._known.samples:
            without = np.flatnonzero(~has_token)
            states[without[: max(0, len(without) - self._known.waiting)]] = RequestState.RUNNING
        return states

    def _told(self, field: str, otherwise: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """One field of every request's record, `otherwise` where the scheduler has told none."""
        if not len(self._records):
            return otherwise
        return np.where(self._at >= 0, self._records[field][self._at], otherwise)

    def _chosen(self, asked: RequestsList) -> npt.NDArray[np.int64]:
        is_wanted = np.ones(len(self._known.front), bool)
        if asked.state is not None:
            if asked.state not in STATES:
                raise OperatorError(f'no state "{asked.state[:40]}"', f"there are: {', '.join(STATES)}")
            is_wanted &= self.states == STATES[asked.state]
        if asked.match:
            is_wanted &= np.asarray([asked.match in request.id for request in self._known.front], bool)
        return np.flatnonzero(is_wanted)

    def _sizes(self, order: RequestOrder) -> npt.NDArray[Any]:
        front, now = self._known.front, self._known.now
        match order:
            case RequestOrder.AGE:
                sizes = [now - request.arrived for request in front]
            case RequestOrder.WAITED:
                return self._waited_s(np.arange(len(front)))
            case RequestOrder.PROMPT:
                sizes = [request.prompt_tokens for request in front]
            case RequestOrder.GENERATED:
                sizes = [request.generated_tokens for request in front]
            case _:
                return self._told(order.value, np.zeros(len(front))).astype(np.float64)
        return np.asarray(sizes, np.float64)

    def _rows(self, indexes: npt.NDArray[np.int64]) -> list[RequestRow]:
        at = self._at[indexes]
        told = self._records[_TOLD][at].tolist() if len(self._records) else []
        waited_s = self._waited_s(indexes).tolist()
        return [
            self._row(index, waited_s[row], dict(zip(_TOLD, told[row], strict=True)) if at[row] >= 0 else {})
            for row, index in enumerate(indexes.tolist())
        ]

    def _waited_s(self, indexes: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Until the first step, and after each preemption until it ran again."""
        front, now, none = self._known.front, self._known.now, np.zeros(len(self._known.front))
        began = self._told("began", none)[indexes].tolist()
        first = [_until_begun_s(front[index], one, now) for index, one in zip(indexes.tolist(), began, strict=True)]
        preempted_at = self._told("preempted_at", none)[indexes]
        again = np.where(preempted_at > 0, np.maximum(0.0, now - preempted_at), 0.0)
        waited_s: npt.NDArray[np.float64] = np.asarray(first) + again + self._told("waited_again_s", none)[indexes]
        return waited_s

    def _row(self, index: int, waited_s: float, told: dict[str, int]) -> RequestRow:
        request, state, now = self._known.front[index], RequestState(int(self.states[index])), self._known.now
        return RequestRow(
            id=request.id[:ID_CHARS].encode(errors="replace").decode(),  # half a surrogate pair is no UTF-8
            state=_NAMES[state],
            age_s=max(0.0, now - request.arrived),
            waited_s=waited_s,
            prompt_tokens=request.prompt_tokens,
            generated_tokens=request.generated_tokens,
            max_tokens=request.max_tokens,
            trouble=self._known.trouble.of(request, state, is_oldest_waiting=index == self._oldest_waiting),
            **told,
        )


_TOLD = ["cached_tokens", "blocks", "priority", "preemptions", "drafted", "accepted"]
"""What the scheduler alone knows: the same names in its records and on the wire."""


def id_of(record: Any) -> str:
    """Of one `REQUEST` record, as far as it is kept."""
    return bytes(record["id"]).decode(errors="ignore")


def _until_begun_s(request: FrontRequest, began: float, now: float) -> float:
    """Until its first step, all of its age. vLLM tells of that step only with the first token, which of a long prompt
    is many steps later; until then `began` counts, the scheduler's word for it, 0 where it has given none."""
    if request.waited_s is not None:
        return request.waited_s
    return max(0.0, (began or now) - request.arrived)
