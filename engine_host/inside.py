"""The inside of the engine as the control socket asks for it: dials, requests, the block map.

Sits between the socket's methods and the lifecycle; changes nothing by itself but the requests that it ends.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from engine_host.engine.lifecycle import Lifecycle
from engine_host.engine.port import Engine
from engine_host.live.sample import LiveSample
from engine_host.protocol.errors import EXIT_INVALID, EXIT_REFUSED, OperatorError
from engine_host.protocol.methods import (
    DialSheet,
    DialsSet,
    KvMap,
    KvMapParams,
    RequestAbort,
    RequestList,
    RequestsList,
)
from engine_host.protocol.snapshot import State
from engine_host.telemetry.block_map import block_map
from engine_host.telemetry.request_list import Known, RequestTable
from engine_host.telemetry.request_trouble import Trouble, core_capacity
from engine_host.telemetry.store import TelemetryStore

_NO_ENGINE = "no engine is running"
_ABORTED = "An operator ended this request."
"""What its client is told; the operator's reason is for the audit log."""
_NOT_YET = "the scheduler has not told anything yet"


class Inside:
    """See `engine_host.control.controlled.Inside`."""

    def __init__(self, lifecycle: Lifecycle, store: TelemetryStore) -> None:
        self._lifecycle = lifecycle
        self._store = store

    # --- dials -----------------------------------------------------------------------------------------------------

    def dials(self) -> DialSheet:
        return self._lifecycle.dials.sheet()

    async def set_dials(self, params: DialsSet, who: str) -> str:
        told = await self._lifecycle.dials.set(params, who)
        if self._lifecycle.state is State.SWITCHING:
            told += "; a switch is under way: the next profile begins at its own"
        return told

    # --- requests --------------------------------------------------------------------------------------------------

    def requests(self, params: RequestsList) -> RequestList:
        engine = self._lifecycle.engine
        if engine is None:
            return RequestList(requests=[], total=0, by_state={}, at=time.time(), unavailable_reason=_NO_ENGINE)
        samples, reason = _samples(engine)
        queue = self._store.queue(self._lifecycle.backlog)
        trouble = Trouble(core_capacity(engine.facts), queue.stalled_reason, self._store.gauges.last_step_age_s)
        known = Known(engine.requests(), samples, queue.waiting or 0, trouble, time.time())
        return RequestTable(known).listed(params, reason)

    def abort(self, params: RequestAbort, who: str) -> str:
        """By its id, or the beginning of one that no other shares. Raises `OperatorError`."""
        engine = self._lifecycle.engine
        if engine is None:
            raise OperatorError(_NO_ENGINE, "See `vllm-console status`.", exit_code=EXIT_REFUSED)
        found = _found(engine, params.id)
        if not engine.abort(found, _ABORTED):
            raise OperatorError(
                f"the request {found[:60]} has ended by itself", "Nothing is left to do.", exit_code=EXIT_REFUSED
            )
        return f"ended the request {found[:60]}; its client was told so"

    # --- blocks ----------------------------------------------------------------------------------------------------

    def kv_map(self, params: KvMapParams) -> KvMap:
        engine = self._lifecycle.engine
        samples, reason = _samples(engine) if engine is not None else ((), _NO_ENGINE)
        if not samples:
            return KvMap(at=time.time(), blocks_per_cell=0, cells=[], holders=[], unavailable_reason=reason)
        return block_map(samples, params.cells)


def _samples(engine: Engine) -> tuple[Sequence[LiveSample], str | None]:
    """None, and why not, where the scheduler cannot be looked into or has told nothing yet."""
    if isinstance(engine.live, str):
        return (), engine.live
    samples = engine.live.samples()
    return samples, None if samples else _NOT_YET


def _found(engine: Engine, wanted: str) -> str:
    """The one request that `wanted` names. Raises `OperatorError`."""
    ids = [request.id for request in engine.requests()]
    if wanted in ids:
        return wanted
    begun = [one for one in ids if one.startswith(wanted)]
    if len(begun) == 1:
        return begun[0]
    if not begun:
        raise OperatorError(
            f"no unfinished request {wanted[:60]}",
            "It may have ended meanwhile. See: vllm-console requests list",
            exit_code=EXIT_INVALID,
        )
    raise OperatorError(
        f"{len(begun)} requests begin with {wanted[:60]}: {begun[0][:60]}, {begun[1][:60]}"
        + (" and others" if len(begun) > 2 else ""),
        "Give more of the id.",
        exit_code=EXIT_INVALID,
    )
