"""The dials of the engine that serves: who set what, until when, and what the scheduler has been told of it.

A dial is changed by one operator at a time, within what the engine takes, and is told as set once every scheduler core
has applied it. A setting may end by itself: then the former one returns, which may end as well. Settings outlive their
engine as long as the profile stays: an engine that comes back after a crash gets them again, made to fit. Another
profile begins at its own values.

`attach` and `detach` are called by whoever installs engines, on the event loop, like everything here.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import weakref
from collections.abc import Callable, Mapping

from engine_host.engine.dial_moves import Note, is_same, moved, refuse_out_of_range, start_of
from engine_host.engine.dial_words import DialWords, in_force_again, setting_of
from engine_host.engine.host_state import EventSink
from engine_host.engine.port import Engine, EngineStartError, LiveScheduler
from engine_host.live.dial import DialName, DialRange
from engine_host.profiles import Profile
from engine_host.protocol.errors import EXIT_FAILED, EXIT_REFUSED, EXIT_TIMED_OUT, OperatorError
from engine_host.protocol.events import Severity
from engine_host.protocol.methods import DialSheet, DialsSet
from engine_host.protocol.snapshot import Dial
from engine_host.timed_settings import Setting, Settings

logger = logging.getLogger(__name__)

ANSWER_S = 30.0
"""What a scheduler gets to apply a dial, should it not give up by itself: the longest honest step is a full prefill
batch on CPU."""
RETRY_S = 5.0
"""Between two attempts to give a dial its former value back."""
_NO_ENGINE = "no engine is running"


class Dials:
    """See the module docstring. `clock` counts what is left of a setting, `wall` is told."""

    def __init__(
        self,
        on_event: EventSink,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._on_event = on_event
        self._clock = clock
        self._wall = wall
        self._engine: Engine | None = None
        self._profile: Profile | None = None
        self._settings: dict[DialName, Settings[int]] = {}
        self._told: dict[DialName, int] = {}
        """What the scheduler was last told, and has applied unless the dial is among the `_unanswered`."""
        self.version = 0
        """Counts the changes, for whoever keeps what was read."""
        self._unanswered: set[DialName] = set()
        self._prepared: tuple[weakref.ref[Engine], dict[DialName, int]] | None = None
        """Weakly: an engine that then does not come to serve must not be kept in memory."""
        self._lock = asyncio.Lock()
        self._woken = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None

    # --- read ------------------------------------------------------------------------------------------------------

    @property
    def unavailable_reason(self) -> str | None:
        """Why there are no dials, in words; None when there are."""
        live = _NO_ENGINE if self._engine is None else self._engine.live
        return live if isinstance(live, str) else None

    def read(self) -> dict[str, Dial]:
        """Every dial that the engine has; none while `unavailable_reason` says why."""
        engine = self._engine
        if engine is None or isinstance(engine.live, str):
            return {}
        now = self._clock()
        return {
            str(name): self._dial(name, span, self._settings[name].in_force(now), engine.live)
            for name, span in engine.live.ranges.items()
            if name in self._settings
        }

    def sheet(self) -> DialSheet:
        return DialSheet(dials=self.read(), unavailable_reason=self.unavailable_reason)

    def _dial(self, name: DialName, span: DialRange, setting: Setting[int], live: LiveScheduler) -> Dial:
        return Dial(
            value=self._value(name, live),
            low=span.low,
            high=span.high,
            start=start_of(self._profile, name, span),
            reason=setting.reason,
            who=setting.who,
            since=setting.since,
            until=setting.until,
        )

    def _value(self, name: DialName, live: LiveScheduler) -> int:
        """In force: what was told, or what the schedulers say as long as one has not answered."""
        told = self._told[name]
        if name in self._unanswered:
            said = [sample.dials[name] for sample in live.samples() if name in sample.dials]
            if said and all(value == told for value in said):
                self._unanswered.discard(name)
            return next((value for value in said if value != told), told)
        return told

    # --- set -------------------------------------------------------------------------------------------------------

    async def set(self, order: DialsSet, who: str) -> str:
        """Returns, when all of it is in force, a sentence of what has changed. Raises `OperatorError`: nothing has
        changed, except with `EXIT_TIMED_OUT`, when the scheduler may still do it."""
        async with self._lock:
            live = self._live()
            words = DialWords(live.ranges, live.missing)
            values = words.checked(order.values)
            self._refuse_stale(words.checked(order.expected or {}, is_range_checked=False), live)
            before, now = {name: self._value(name, live) for name in values}, self._clock()
            planned = {
                name: self._settings[name].with_(
                    setting_of(order, value, start_of(self._profile, name, live.ranges[name]), who, now, self._wall())
                )
                for name, value in values.items()
            }
            wanted = {name: settings.in_force(now).value for name, settings in planned.items()}
            passed = {name for name in values if self._settings[name].in_force(now).ends is not None}
            told = words.told(before, wanted, passed, order)
            fault = await self._tell(live, wanted)
            self._settings.update(planned)
            self.version += 1
            self._woken.set()
            if fault is not None:
                raise OperatorError(
                    f"the outcome is unknown: {told}: {fault}",
                    "See the value in force: vllm-console dial",
                    exit_code=EXIT_TIMED_OUT,
                )
            return told

    def _live(self) -> LiveScheduler:
        live = _NO_ENGINE if self._engine is None else self._engine.live
        if isinstance(live, str):
            raise OperatorError(
                f"there are no dials: {live}", "See where the host stands: vllm-console status", exit_code=EXIT_REFUSED
            )
        return live

    def _refuse_stale(self, expected: Mapping[DialName, int | None], live: LiveScheduler) -> None:
        now = self._clock()
        for name, saw in expected.items():
            if (value := self._value(name, live)) != saw:
                setting = self._settings[name].in_force(now)
                by = f" (set by {setting.who})" if setting.who is not None else ""
                raise OperatorError(
                    f"{name} is {value}{by}; this call expected {saw}",
                    "look at it again, then decide anew: vllm-console dial",
                    exit_code=EXIT_REFUSED,
                )

    async def _tell(self, live: LiveScheduler, values: Mapping[DialName, int]) -> str | None:
        """None once it has applied them; else why that is not known: it may still do it. Raises `OperatorError` when
        it refuses a value, and when the engine is gone meanwhile."""
        engine, fault = self._engine, None
        try:
            async with asyncio.timeout(ANSWER_S):
                await live.set_dials(values)
        except TimeoutError as error:
            fault = str(error) or f"the scheduler did not answer within {ANSWER_S:.0f} s"
        except ValueError as error:
            raise OperatorError(str(error), "See what each takes: vllm-console dial") from error
        if self._engine is not engine:
            fact = "the engine ended while it applied the dials; nothing is set"
            raise OperatorError(fact, "Look at them: vllm-console dial", exit_code=EXIT_FAILED)
        self._told.update(values)
        self.version += 1
        if fault is None:
            self._unanswered.difference_update(values)
        else:
            self._unanswered.update(values)
        return fault

    # --- engines that come and go ----------------------------------------------------------------------------------

    async def prepare(self, engine: Engine, profile: Profile) -> None:
        """Before `engine` serves `profile`, or goes on with it: set what will hold then. The dials of another engine
        are left alone. Raises `OperatorError` when the profile asks for what it does not take, `EngineStartError` when
        it does not answer."""
        live = engine.live
        if isinstance(live, str):
            return
        refuse_out_of_range(profile, live.ranges, live.missing)
        if engine is not self._engine:
            await self._prepare(engine, live, profile, {name: span.start for name, span in live.ranges.items()})
            return
        async with self._lock:  # nobody sets what `attach` is about to forget
            await self._prepare(engine, live, profile, self._told)

    async def _prepare(
        self, engine: Engine, live: LiveScheduler, profile: Profile, told: Mapping[DialName, int]
    ) -> None:
        now = self._clock()
        settings, _ = moved(self._settings, self._profile, profile, live.ranges, now)
        values = {name: one.in_force(now).value for name, one in settings.items()}
        if changed := {name: value for name, value in values.items() if value != told.get(name)}:
            try:
                async with asyncio.timeout(ANSWER_S):
                    await live.set_dials(changed)
            except BaseException as error:
                if engine is self._engine:
                    self._unanswered.update(changed)  # and is told the former values again
                    self._woken.set()
                if not isinstance(error, TimeoutError):
                    raise
                raise EngineStartError(f"the dials of {profile.name} were not applied: {error}") from None
        self._prepared = (weakref.ref(engine), values)

    def attach(self, engine: Engine, profile: Profile) -> None:
        """`engine` serves `profile` from now on."""
        self.detach()
        live, former = engine.live, self._profile
        notes: list[Note] = []
        prepared = self._prepared[1] if self._prepared is not None and self._prepared[0]() is engine else {}
        self._prepared = None
        if isinstance(live, str):
            self._settings = {}
            if profile.dials:
                notes = [(f"the dials of {profile.name} are not applied: {live}", Severity.WARNING)]
        else:
            self._settings, notes = moved(self._settings, former, profile, live.ranges, self._clock())
            self._told = {name: prepared.get(name, span.start) for name, span in live.ranges.items()}
            self._unanswered.clear()
        self._engine, self._profile = engine, profile
        self.version += 1
        kind = "dials.kept" if is_same(former, profile) else "dials.reset"
        for text, severity in notes:
            self._on_event(kind, text, severity=severity)
        self._woken.set()  # a setting may have ended, or been made, since the engine was prepared
        if self._settings:
            self._keeper = asyncio.create_task(self._keep(), name="dials")

    def detach(self) -> None:
        """No engine serves. What was set is remembered for the next one."""
        self._engine = None
        if self._keeper is not None:
            self._keeper.cancel()
            self._keeper = None

    # --- settings that end -----------------------------------------------------------------------------------------

    async def _keep(self) -> None:
        """Give dials their former value back when a setting ends, and go on telling a scheduler that has not answered:
        it may not have seen what it was told."""
        while True:
            await self._until_due()
            if self.unavailable_reason is not None:  # nothing can be told any more; the engine may still serve
                await asyncio.sleep(RETRY_S)
                continue
            try:
                async with self._lock:
                    await self._settle()
            except Exception:
                logger.exception("dials that end stay as they are")
                await asyncio.sleep(RETRY_S)

    async def _until_due(self) -> None:
        if self._unanswered:
            await asyncio.sleep(RETRY_S)
            return
        ends = [end for settings in self._settings.values() if (end := settings.next_end()) is not None]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(min(ends) - self._clock(), 0.0) if ends else None):
                await self._woken.wait()
        self._woken.clear()

    async def _settle(self) -> None:
        live, now = self._live(), self._clock()
        ended = {name: one for name, settings in self._settings.items() if (one := settings.end(now)) is not None}
        wanted = {name: settings.in_force(now).value for name, settings in self._settings.items()}
        late = {name for name in self._unanswered if wanted[name] == self._told[name]}
        changed = {name: value for name, value in wanted.items() if value != self._told[name] or name in late}
        if not changed:
            return
        before = {name: self._value(name, live) for name in changed}
        fault = await self._tell(live, changed)
        for name, value in changed.items():
            text = in_force_again(name, before[name], value, ended.get(name), is_late=name in late)
            if fault is None:
                kind = "dials.late" if name in late else "dials.returned"
                self._on_event(kind, text, data={"dial": str(name), "value": value})
            elif name not in late:
                waits = f"{text}; but {fault}; it is told again"
                self._on_event("dials.unanswered", waits, severity=Severity.WARNING)
