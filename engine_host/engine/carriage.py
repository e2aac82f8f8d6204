"""The requests in flight during one switch: held at the gate, taken from the old engine, given to the new one.

New requests wait from `hold` until the release. Those in flight are drained when only the old engine can finish them,
and otherwise carried or replayed; whichever finds no engine ends with the reason as its text.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass, field
from typing import Any

from engine_host.engine.deck import Deck
from engine_host.engine.port import STOPPED, Bound, Engine
from engine_host.engine.timeline import Timeline

_DRAIN_POLL_S = 0.05
_FIRST_TOKEN_S = 20.0
"""How long the first token after the release is waited for, to measure the gap: on a CPU the prompts of forty streams
take ten seconds."""
_CUT_OFF = "The server changed its profile, and this answer could not go on in the new engine: {reason}. Send it again."
_TOO_LONG = _CUT_OFF.format(reason="it is too long for the new engine")


@dataclass
class Carriage:
    """Used once, in the order `hold`, `take`, `give`, `lose` or `stop`."""

    deck: Deck
    timeline: Timeline
    drain_timeout_s: float
    cancel: asyncio.Event
    is_taken: bool = False
    """The old engine hands over, and there is no way back to it."""
    carried: int = 0
    drained: int = 0
    replayed: int = 0
    cut_off: int = 0
    """Ended with an error at the end of the drain time."""
    gap_s: float | None = None
    """From the old engine's last token to the new one's first."""
    _has_held: bool = False
    _old: Engine | None = None
    _items: list[Any] = field(default_factory=list)
    _frozen_at: float | None = None

    def hold(self) -> None:
        """New requests wait at the gate, if they do not yet."""
        if self._has_held:
            return
        self._has_held = True
        self.deck.entry.hold(self.deck.profile.switch.hold_deadline_s, self.timeline.left_s)

    @property
    def held(self) -> int:
        """How many have waited at the gate in this switch; those of the last one are still counted before `hold`."""
        return self.deck.entry.held_total if self._has_held else 0

    async def take(self, old: Engine, bound: Bound) -> None:
        """Drain, then take what can go on elsewhere out of the old engine. Raises `Cancelled`, `Interrupted`."""
        at_first = old.handling(bound)
        await self.deck.uninterrupted(self._drain(old, bound), self.cancel)
        self.is_taken = True
        left = old.handling(bound)
        self._frozen_at = time.monotonic()
        self._old = old
        reason = bound.reason or "it depends on state of the old engine, and its drain time is over"
        self._items = await old.hand_over(bound, _CUT_OFF.format(reason=reason))
        self.replayed = sum(1 for item in self._items if item.is_replayed)
        self.carried = len(self._items) - self.replayed
        self.drained = max(0, at_first.drain + at_first.replay - left.drain - left.replay)
        self.cut_off = left.carry + left.drain + left.replay if old.is_dead else left.drain
        died = "the old engine has died: " if old.is_dead else ""
        self.timeline.note(died + self._what_became())

    def _what_became(self) -> str:
        """What a client will complain of first: a narrow screen cuts the end."""
        told = ((self.cut_off, "cut off"), (self.carried, "carried"), (self.drained, "drained"))
        counts = [f"{count} {word}" for count, word in (*told, (self.replayed, "begun again")) if count]
        return ", ".join(counts) or "none in flight"

    async def _drain(self, old: Engine, bound: Bound) -> None:
        """Wait for the requests that cannot be carried. The others go on meanwhile."""
        deadline = time.monotonic() + self.drain_timeout_s
        while (left_s := deadline - time.monotonic()) > 0 and not old.is_dead:
            now = old.handling(bound)
            if not now.drain and not now.replay:
                return
            self.timeline.note(f"draining {now.drain + now.replay}, {left_s:.0f} s at most; carrying {now.carry}")
            await asyncio.sleep(_DRAIN_POLL_S)

    async def give(self, new: Engine) -> bool:
        """`new` goes on with what was taken, and the old app asks it from now on; returns whether anything goes on.

        Raises `EngineStartError` when `new` fails meanwhile; what was taken can then be given to another one.
        """
        self.is_taken = True
        waiting = [item for item in self._items if not item.is_given_up]
        going_on = await new.adopt(waiting, _TOO_LONG)
        self._items = []
        if self._old is not None:
            self._old.succeed(new, _TOO_LONG)
        self.replayed = sum(1 for item in going_on if item.is_replayed)
        self.carried = len(going_on) - self.replayed
        self.cut_off += len(waiting) - len(going_on)
        return bool(going_on)

    async def measure_gap(self, first_token: asyncio.Event) -> None:
        """Wait for the first token, within reason; without one the gap stays unknown."""
        if self._frozen_at is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(first_token.wait(), _FIRST_TOKEN_S)
                self.gap_s = time.monotonic() - self._frozen_at

    def lose(self, reason: str) -> None:
        """End what was taken and found no engine, and what the old app still asks for."""
        self._end(_CUT_OFF.format(reason=reason))

    def stop(self) -> None:
        """The same because the host stops, which is no fault of the new engine."""
        self._end(STOPPED)

    def _end(self, error: str) -> None:
        if self._old is not None:
            self._old.drop(self._items, error)
            self._old.succeed(None, error)
        self._items = []
