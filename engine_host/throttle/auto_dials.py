"""The dials that the controller may turn down beside its cap: set as `auto`, and never over an operator's setting.

`max_active_seqs` follows the cap: requests that are in the engine already stay in its queue, instead of preempting each
other until the cap has taken hold. `speculative_tokens` is turned down in the same proportion: draft tokens take
compute and blocks that a full engine lacks. Both return when the cap goes.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterable

from engine_host.engine.dials import Dials
from engine_host.engine.host_state import EventSink
from engine_host.live.dial import DialName
from engine_host.protocol.errors import OperatorError
from engine_host.protocol.events import Severity
from engine_host.protocol.methods import DialsSet
from engine_host.protocol.snapshot import Dial
from engine_host.protocol.throttling import AUTO

logger = logging.getLogger(__name__)


class AutoDials:
    def __init__(self, dials: Dials, on_event: EventSink) -> None:
        self._dials = dials
        self._on_event = on_event
        self._told_off: str | None = None
        """Why it could not be done, already told."""

    async def settle(self, names: Iterable[str], cap: int | None, full: int | None, why: str) -> None:
        """Bring the dials where they belong at `cap`, which is a share of `full`; those not among `names`, and all
        without a cap, back to their start. Raises nothing."""
        changes = self._changes(set(names) if cap is not None else set(), cap or 0, full or 1)
        if not changes:
            return
        sheet = self._dials.read()
        order = DialsSet(
            values=changes,
            expected={name: sheet[name].value for name in changes},
            reason=why,
            idempotency_key=secrets.token_hex(8),
        )
        try:
            told = await self._dials.set(order, AUTO)
        except OperatorError as error:
            if error.fact != self._told_off:
                self._told_off = error.fact
                self._on_event(
                    "throttle.auto.dials", f"dials not turned: {error.fact}", severity=Severity.WARNING, who=AUTO
                )
            return
        self._told_off = None
        self._on_event("throttle.auto.dials", told, who=AUTO, data={"dials": dict(changes)})

    def _changes(self, names: set[str], cap: int, full: int) -> dict[str, int | None]:
        changes: dict[str, int | None] = {}
        for name, dial in self._dials.read().items():
            if dial.who not in (None, AUTO):
                continue
            wanted = _at_cap(name, dial, cap, full) if name in names else None
            if wanted is None:
                if dial.who == AUTO:
                    changes[name] = None
            elif wanted != dial.value:
                changes[name] = wanted
        return changes


def _at_cap(name: str, dial: Dial, cap: int, full: int) -> int | None:
    """None: where it started."""
    wanted = cap if name == DialName.MAX_ACTIVE_SEQS else dial.start * cap // full
    wanted = max(wanted, dial.low)
    return wanted if wanted < dial.start else None
